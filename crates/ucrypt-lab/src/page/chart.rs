//! Charts as SVG, by plotters. Colours stand for roles: the page's style sheet gives each its colour
//! in the theme of the reader, and dashes published lines. Contenders of one colour have other marks.

use std::fmt::Write as _;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Axes, grid and text.
const GRID: RGBColor = RGBColor(0xE0, 0x00, 0xF0);
const TEXT: RGBColor = RGBColor(0xE0, 0x00, 0xF1);

/// Number of colours that contenders have; the next one in the style sheet is [`GREY`].
pub(super) const COLOURS: usize = 8;

/// The colour of published figures that no contender of the run repeats.
const GREY: usize = COLOURS;

/// How published lines are dashed, and how opaque their marks and bars are. Further series of one colour begin anew.
pub(super) const DASHES: [(&str, f64); 6] = [
    ("6 4", 0.55),
    ("1 4", 0.4),
    ("14 3 2 3", 0.7),
    ("2 8", 0.25),
    ("12 6", 0.85),
    ("14 3 2 3 2 3", 0.15),
];

/// What stands at a point of a line, and above a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Disc,
    Square,
    Triangle,
    Diamond,
    Ring,
    Frame,
    Cross,
}

/// In the order in which contenders of one colour get them.
const MARKS: [Mark; 7] =
    [Mark::Disc, Mark::Triangle, Mark::Ring, Mark::Cross, Mark::Frame, Mark::Diamond, Mark::Square];

/// Half the width of a mark, in pixels.
const MARK: i32 = 4;

impl Mark {
    /// Its lines, as pixels from its middle: those of a shape return to their beginning. None: it is round.
    fn lines(self) -> Vec<Vec<(i32, i32)>> {
        let (side, tip) = (MARK - 1, MARK + 1);
        match self {
            Self::Disc | Self::Ring => Vec::new(),
            Self::Square | Self::Frame => {
                vec![vec![
                    (-side, -side),
                    (side, -side),
                    (side, side),
                    (-side, side),
                    (-side, -side),
                ]]
            }
            Self::Triangle => vec![vec![(0, -tip), (MARK, side), (-MARK, side), (0, -tip)]],
            Self::Diamond => vec![vec![(0, -tip), (tip, 0), (0, tip), (-tip, 0), (0, -tip)]],
            Self::Cross => {
                vec![vec![(-MARK, -MARK), (MARK, MARK)], vec![(-MARK, MARK), (MARK, -MARK)]]
            }
        }
    }

    fn is_filled(self) -> bool {
        !matches!(self, Self::Ring | Self::Frame | Self::Cross)
    }

    /// The same for a legend.
    fn svg(self, (x, y): (i32, i32), colour: &str) -> String {
        let paint = if self.is_filled() {
            format!("fill=\"{colour}\" stroke=\"none\"")
        } else {
            format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"")
        };
        let lines = self.lines();
        if lines.is_empty() {
            return format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{MARK}\" {paint}/>");
        }
        let line = |points: Vec<(i32, i32)>| {
            let points = points.iter().map(|(dx, dy)| format!("{},{}", x + dx, y + dy));
            let points = points.collect::<Vec<_>>().join(" ");
            format!("<polyline points=\"{points}\" {paint}/>")
        };
        lines.into_iter().map(line).collect()
    }
}

/// What a contender is told by: the same in every chart of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Index of its colour.
    pub(super) colour: usize,
    mark: Mark,
}

impl Look {
    /// Of published figures that no contender of the run repeats.
    pub(super) const NOBODY: Self = Self { colour: GREY, mark: MARKS[0] };

    /// Of one of the contenders of an experiment. There are looks for more of them than a run can have.
    pub(super) fn of(index: usize) -> Self {
        Self { colour: index % COLOURS, mark: MARKS[index / COLOURS % MARKS.len()] }
    }
}

/// One line or one group of bars.
pub(super) struct Series {
    pub(super) label: String,
    /// What was published is dashed: which of [`DASHES`]. Those of one colour differ in it.
    pub(super) published: Option<usize>,
    pub(super) look: Look,
    /// By place on the x axis.
    pub(super) values: Vec<Option<f64>>,
}

impl Series {
    fn rgb(&self) -> RGBColor {
        let group = self.published.map_or(0, |dash| 0x10 + dash % DASHES.len());
        RGBColor(0xE0, group as u8, self.look.colour as u8)
    }

    /// How it is drawn, for a legend.
    fn key(&self, kind: Kind) -> String {
        let RGBColor(role, group, index) = self.rgb();
        let colour = format!("#{role:02X}{group:02X}{index:02X}");
        let (drawn, mark) = match kind {
            Kind::Lines => (
                format!(
                    "<polyline points=\"0,7 36,7\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
                ),
                Some((18, 7)),
            ),
            Kind::Bars => (
                format!(
                    "<rect x=\"14\" y=\"2\" width=\"20\" height=\"11\" fill=\"{colour}\" stroke=\"{colour}\"/>"
                ),
                Some((6, 7)).filter(|_| self.published.is_none()),
            ),
        };
        let mark = mark.map_or_else(String::new, |at| self.look.mark.svg(at, &colour));
        format!("<svg class=\"key\" viewBox=\"0 0 36 14\" aria-hidden=\"true\">{drawn}{mark}</svg>")
    }
}

/// Bars of a chart that are wide enough for their marks, also on a phone.
const BARS_MAX: usize = 40;

/// How values are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Lines,
    Bars,
}

impl Kind {
    /// Of a chart with so many places and series: few values are bars.
    pub(super) fn of(places: usize, series: usize) -> Self {
        if places >= 4 || places * series > BARS_MAX { Self::Lines } else { Self::Bars }
    }
}

/// A chart over named places.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// The unit of the values.
    pub(super) unit: &'a str,
    pub(super) places: Vec<String>,
    pub(super) series: Vec<Series>,
    pub(super) kind: Kind,
    /// Values on a logarithmic axis.
    pub(super) log: bool,
}

/// Width, height, and how many places are named at most.
const SIZES: [(&str, u32, u32, usize); 2] = [("wide", 760, 340, 12), ("narrow", 380, 300, 6)];

/// Width of a character of a name, in pixels, on the safe side.
const CHAR_WIDTH: f64 = 7.2;

/// Characters that a name should have, if it has as many.
const CHARS_WANTED: usize = 10;

/// Every how many places one is named, and how many characters its name may have, so that no name
/// touches the next. `room`: pixels of a place. `names`: how many are named at most.
fn named(places: &[String], room: f64, names: usize) -> (usize, usize) {
    let longest = places.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    #[expect(clippy::cast_sign_loss, reason = "a width is positive")]
    let fits = |step: usize| (step as f64 * room / CHAR_WIDTH) as usize;
    let mut step = places.len().div_ceil(names.max(1)).max(1);
    // One character stays free between two names.
    while step < places.len() && fits(step) < longest.min(CHARS_WANTED) + 1 {
        step += 1;
    }
    (step, fits(step).saturating_sub(1).max(1))
}

/// A name in that many characters.
fn shortened(name: &str, chars: usize) -> String {
    if name.chars().count() <= chars {
        return name.into();
    }
    name.chars().take(chars.saturating_sub(1)).chain(['…']).collect()
}

/// Values that a chart has room for: a damaged run may have any. Others are in the table.
const DRAWN: std::ops::Range<f64> = 1e-9..1e18;

impl Chart<'_> {
    /// A figure with the chart in two widths and its legend; nothing if there is nothing to draw.
    pub(super) fn html(&self) -> String {
        let values = self.series.iter().flat_map(|series| &series.values).flatten();
        let drawn = values.clone().any(|value| DRAWN.contains(value));
        if !drawn || self.places.is_empty() {
            return String::new();
        }
        let title = super::escape(self.title);
        let mut html = format!("<figure><figcaption>{title}, {}</figcaption>", self.unit);
        for (class, width, height, names) in SIZES {
            // What cannot be drawn is in the table.
            let Ok(svg) = self.svg(width, height, names) else { return String::new() };
            let svg = svg.replacen(
                "<svg ",
                &format!("<svg class=\"{class}\" role=\"img\" aria-label=\"{title}\" "),
                1,
            );
            html.push_str(&svg);
        }
        html.push_str("<ul class=\"legend\">");
        for series in &self.series {
            let label = super::escape(&series.label);
            // Writing to a string cannot fail.
            let _ = write!(html, "<li>{}{label}</li>", series.key(self.kind));
        }
        html.push_str("</ul></figure>\n");
        html
    }

    fn svg(&self, width: u32, height: u32, names: usize) -> Result<String, String> {
        let positive = || {
            self.series
                .iter()
                .flat_map(|series| &series.values)
                .flatten()
                .copied()
                .filter(|value| DRAWN.contains(value))
        };
        let max = positive().fold(0.0, f64::max);
        let min = positive().fold(f64::INFINITY, f64::min);
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
            if self.log {
                let range = (min * 0.8..max * 1.3).log_scale();
                self.draw(&root, range, names)?;
            } else {
                self.draw(&root, 0.0..max * 1.08, names)?;
            }
            root.present().map_err(|error| error.to_string())?;
        }
        Ok(svg)
    }

    fn draw<Y>(
        &self,
        root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        range: Y,
        names: usize,
    ) -> Result<(), String>
    where
        Y: plotters::coord::ranged1d::AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let count = self.places.len();
        let mut chart = ChartBuilder::on(root)
            .margin(6)
            .x_label_area_size(34)
            .y_label_area_size(62)
            .build_cartesian_2d(-0.5..count as f64 - 0.5, range)
            .map_err(|error| text(&error))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .x_labels(0)
            .y_labels(6)
            .y_label_formatter(&|value| crate::text::figure(*value))
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(("sans-serif", 12).into_font().color(&TEXT))
            .draw()
            .map_err(|error| text(&error))?;
        let floor = self.floor();
        for (index, series) in self.series.iter().enumerate() {
            let style = series.rgb();
            match self.kind {
                Kind::Lines => {
                    lines(&mut chart, series, style).map_err(|error| text(&error))?;
                }
                Kind::Bars => {
                    let width = 0.8 / self.series.len() as f64;
                    let bars = series.values.iter().enumerate().filter_map(|(place, value)| {
                        let left = place as f64 - 0.4 + width * index as f64;
                        let value = value.filter(|value| DRAWN.contains(value))?.max(floor);
                        Some([(left, floor), (left + width * 0.92, value)])
                    });
                    let bars: Vec<[(f64, f64); 2]> = bars.collect();
                    let filled = bars.iter().map(|bar| Rectangle::new(*bar, style.filled()));
                    chart.draw_series(filled).map_err(|error| text(&error))?;
                    if series.published.is_some() {
                        let edges =
                            bars.iter().map(|bar| Rectangle::new(*bar, style.stroke_width(1)));
                        chart.draw_series(edges).map_err(|error| text(&error))?;
                    } else {
                        let tops = bars
                            .iter()
                            .map(|[from, to]| (f64::midpoint(from.0, to.0), to.1))
                            .collect();
                        marks(&mut chart, tops, (series.look.mark, -MARK - 2), style)
                            .map_err(|error| text(&error))?;
                    }
                }
            }
        }
        // The names of the places, which are no numbers.
        let area = chart.plotting_area();
        let (width, bottom) = root.dim_in_pixel();
        let room = f64::from(area.dim_in_pixel().0) / count.max(1) as f64;
        let (step, chars) = named(&self.places, room, names);
        for (place, name) in self.places.iter().enumerate().step_by(step) {
            let name = shortened(name, chars);
            let (x, _) = area.map_coordinate(&(place as f64, floor));
            let half = name.chars().count() as f64 * CHAR_WIDTH / 2.0;
            if f64::from(x) + half > f64::from(width) {
                // It would be cut off. It stands in the table.
                continue;
            }
            let font = ("sans-serif", 12).into_font().color(&TEXT);
            let centred = font.pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Center,
                plotters::style::text_anchor::VPos::Center,
            ));
            root.draw_text(&name, &centred, (x, i32::try_from(bottom).unwrap_or(i32::MAX) - 20))
                .map_err(|error| text(&error))?;
        }
        Ok(())
    }

    /// Where bars begin.
    fn floor(&self) -> f64 {
        if !self.log {
            return 0.0;
        }
        let values = self.series.iter().flat_map(|series| &series.values).flatten().copied();
        values.filter(|value| DRAWN.contains(value)).fold(f64::INFINITY, f64::min) * 0.8
    }
}

/// Half the length of the line through a published point that has no neighbours, in places.
const ALONE: f64 = 0.2;

/// Draws the lines and marks of a series.
fn lines<Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, Y>>,
    series: &Series,
    colour: RGBColor,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>>
where
    Y: Ranged<ValueType = f64>,
{
    let usable = |value: &f64| DRAWN.contains(value);
    // A place without a value breaks the line.
    let mut run: Vec<(f64, f64)> = Vec::new();
    let mut points = Vec::new();
    let mut runs = Vec::new();
    for (place, value) in series.values.iter().enumerate() {
        match value.filter(usable) {
            Some(value) => run.push((place as f64, value)),
            None => runs.push(std::mem::take(&mut run)),
        }
    }
    runs.push(run);
    for mut run in runs {
        points.extend(run.iter().copied());
        // One point alone shows no dashes.
        if let (Some(_), &[(x, y)]) = (series.published, run.as_slice()) {
            run = vec![(x - ALONE, y), (x + ALONE, y)];
        }
        chart.draw_series(LineSeries::new(run, colour.stroke_width(2)))?;
    }
    marks(chart, points, (series.look.mark, 0), colour)
}

/// Draws a mark at each of these points, so many pixels below it.
fn marks<Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, Y>>,
    points: Vec<(f64, f64)>,
    (mark, below): (Mark, i32),
    colour: RGBColor,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>>
where
    Y: Ranged<ValueType = f64>,
{
    let (filled, edge) = (colour.filled(), colour.stroke_width(2));
    let lines = mark.lines();
    if lines.is_empty() {
        let style = if mark.is_filled() { filled } else { edge };
        let round = |at| EmptyElement::at(at) + Circle::new((0, below), MARK, style);
        chart.draw_series(points.into_iter().map(round))?;
        return Ok(());
    }
    for line in lines {
        let line: Vec<_> = line.into_iter().map(|(x, y)| (x, y + below)).collect();
        let at = points.iter().copied();
        if mark.is_filled() {
            let shape = |at| EmptyElement::at(at) + Polygon::new(line.clone(), filled);
            chart.draw_series(at.map(shape))?;
        } else {
            let shape = |at| EmptyElement::at(at) + PathElement::new(line.clone(), edge);
            chart.draw_series(at.map(shape))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Of a damaged run: the library that draws would not end.
    #[test]
    fn figures_that_no_chart_has_room_for_are_left_out() {
        for odd in [1e308, -1e300, 1e-308, f64::INFINITY, f64::NAN, 0.0, -1.0] {
            for (kind, log) in [(Kind::Lines, true), (Kind::Lines, false), (Kind::Bars, false)] {
                let values = vec![Some(odd), Some(2.0), None];
                let look = Look::of(0);
                let series = Series { label: "a".into(), published: None, look, values };
                let places = ["x", "y", "z"].map(str::to_owned).into();
                let (title, unit, series) = ("t", "u", vec![series]);
                let chart = Chart { title, unit, places, series, kind, log };
                assert!(chart.html().contains("<svg"), "{odd}");
            }
        }
    }

    #[test]
    fn every_contender_that_there_is_has_a_look_of_its_own_in_a_chart_and_in_its_legend() {
        let count = COLOURS * MARKS.len();
        let mut keys = BTreeSet::new();
        for kind in [Kind::Lines, Kind::Bars] {
            keys.clear();
            for index in 0..count {
                for published in [None].into_iter().chain((0..DASHES.len()).map(Some)) {
                    let look = Look::of(index);
                    let series = Series { label: "a".into(), published, look, values: Vec::new() };
                    assert!(look.colour < GREY, "grey is nobody's");
                    let is_new = keys.insert(series.key(kind));
                    // Published bars have no marks.
                    assert!(is_new || (kind == Kind::Bars && published.is_some()), "{index}");
                }
            }
        }
        assert!(count >= 50, "all servers with all policies");
        // The marks are in the chart: two contenders of one colour differ in more than their place.
        for (kind, places) in [(Kind::Lines, 4), (Kind::Bars, 2)] {
            let of = |index| {
                let (look, values) = (Look::of(index), vec![Some(1.0); places]);
                let series = vec![Series { label: "a".into(), published: None, look, values }];
                let places = vec!["x".to_owned(); places];
                Chart { title: "t", unit: "u", places, series, kind, log: false }.html()
            };
            let drawn: BTreeSet<String> = (0..MARKS.len()).map(|mark| of(COLOURS * mark)).collect();
            assert_eq!(drawn.len(), MARKS.len());
        }
    }

    #[test]
    fn names_have_room_beside_each_other_and_some_are_left_out() {
        let names = |name: &str, count: usize| vec![name.to_owned(); count];
        // Three long names on a phone are shortened, and none is left out.
        assert_eq!(named(&names("1m randread qd32 ×", 3), 104.0, 6), (1, 13));
        assert_eq!(named(&names("4k", 12), 25.0, 12), (1, 2));
        // Of many, so many that each has its room.
        let (step, chars) = named(&names("256k randwrite qd64", 40), 8.0, 6);
        assert!(step >= 7 && chars as f64 * CHAR_WIDTH < step as f64 * 8.0, "{step}, {chars}");
        assert_eq!(named(&[], 0.0, 6), (1, 1));
        assert_eq!(shortened("1m randread", 5), "1m r…");
        assert_eq!(shortened("größe", 5), "größe");
    }
}
