//! Charts as SVG, by plotters. Colours stand for roles: the page's style sheet gives each its colour
//! in the theme of the reader, and dashes published lines.

use std::fmt::Write as _;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Axes, grid and text.
const GRID: RGBColor = RGBColor(0xE0, 0x00, 0xF0);
const TEXT: RGBColor = RGBColor(0xE0, 0x00, 0xF1);

/// Number of colours in the style sheet; further series begin anew.
pub(super) const COLOURS: usize = 14;

/// The colour of published figures that no contender repeats.
pub(super) const GREY: usize = 8;

/// How published lines are dashed, how opaque their bars are, and the border of the same look in a
/// legend. Further series of one colour begin anew.
pub(super) const DASHES: [(&str, f64, &str); 4] = [
    ("6 4", 0.55, "dashed"),
    ("1 4", 0.4, "dotted"),
    ("14 3 2 3", 0.7, "double"),
    ("2 8", 0.25, "groove"),
];

/// One line or one group of bars.
pub(super) struct Series {
    pub(super) label: String,
    /// What was published is dashed: which of [`DASHES`]. Those of one colour differ in it.
    pub(super) published: Option<usize>,
    /// Index of its colour.
    pub(super) colour: usize,
    /// By place on the x axis.
    pub(super) values: Vec<Option<f64>>,
}

impl Series {
    fn rgb(&self) -> RGBColor {
        let group = self.published.map_or(0, |dash| 0x10 + dash % DASHES.len());
        RGBColor(0xE0, group as u8, (self.colour % COLOURS) as u8)
    }

    /// Its class in the style sheet.
    fn class(&self) -> String {
        let dash =
            self.published.map_or_else(String::new, |dash| format!(" d{}", dash % DASHES.len()));
        format!("swatch c{}{dash}", self.colour % COLOURS)
    }
}

/// How values are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Lines,
    Bars,
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
            let _ = write!(html, "<li><span class=\"{}\"></span>{label}</li>", series.class());
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
                        let corners = [(left, floor), (left + width * 0.92, value)];
                        Some(Rectangle::new(corners, style.filled()))
                    });
                    chart.draw_series(bars).map_err(|error| text(&error))?;
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
    for run in runs {
        points.extend(run.iter().copied());
        chart.draw_series(LineSeries::new(run, colour.stroke_width(2)))?;
    }
    let marks = points.into_iter().map(|point| Circle::new(point, 3, colour.filled()));
    chart.draw_series(marks)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a damaged run: the library that draws would not end.
    #[test]
    fn figures_that_no_chart_has_room_for_are_left_out() {
        for odd in [1e308, -1e300, 1e-308, f64::INFINITY, f64::NAN, 0.0, -1.0] {
            for (kind, log) in [(Kind::Lines, true), (Kind::Lines, false), (Kind::Bars, false)] {
                let values = vec![Some(odd), Some(2.0), None];
                let series = Series { label: "a".into(), published: None, colour: 0, values };
                let places = ["x", "y", "z"].map(str::to_owned).into();
                let (title, unit, series) = ("t", "u", vec![series]);
                let chart = Chart { title, unit, places, series, kind, log };
                assert!(chart.html().contains("<svg"), "{odd}");
            }
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
