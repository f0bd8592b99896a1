//! The page of `ucrypt lab report` in a real browser: headless Chromium lays it out in both themes, as
//! wide as a phone and as a desk, and tells what a reader would see.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::process::{run, tool};
use crate::scratch::Scratch;

/// Put at the end of a copy of the page: it says what does not fit, and what cannot be read.
const PROBE: &str = r"<script>
const seen = { maps: 0, pale: [], height: document.documentElement.scrollHeight,
  sections: [...document.querySelectorAll('section')].map(it => it.id), dark: matchMedia('(prefers-color-scheme: dark)').matches, width: innerWidth,
  wide: document.documentElement.scrollWidth, beyond: [], faint: [], charts: 0, wrong: [], over: [] };
const rgb = text => (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = colour => { const [r, g, b] = rgb(colour).map(c => c / 255)
    .map(c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b; };
const behind = el => { for (; el; el = el.parentElement) {
    const colour = getComputedStyle(el).backgroundColor, parts = rgb(colour);
    if (parts.length < 4 || parts[3] > 0) return colour; }
  return seen.dark ? 'rgb(18,18,18)' : 'rgb(255,255,255)'; };
const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((m, n) => n - m);
  return (x + .05) / (y + .05); };
for (const el of document.querySelectorAll('h1,h2,h3,p,td,th,li,a,figcaption,pre,dt,dd,text')) {
  const box = el.getBoundingClientRect();
  if (!box.width || !el.textContent.trim()) continue;
  const svg = el.ownerSVGElement, style = getComputedStyle(el);
  const ratio = contrast(svg ? style.fill : style.color, behind(svg || el));
  if (ratio < 4.5) seen.faint.push(ratio.toFixed(1) + ' ' + el.textContent.slice(0, 40));
  // What is wider than the window scrolls in a box of its own.
  const table = el.closest('.table');
  if (!(table && getComputedStyle(table).overflowX == 'auto') && (box.right > innerWidth + 1 || box.left < -1))
    seen.beyond.push(el.tagName + ' ' + el.textContent.slice(0, 40));
}
for (const map of document.querySelectorAll('table.heat')) {
  seen.maps += map.getBoundingClientRect().width > 0;
  // A map is seen by its colours, and as a whole.
  for (const cell of map.querySelectorAll('td'))
    if (cell.textContent && rgb(getComputedStyle(cell).backgroundColor).length != 3)
      seen.pale.push(map.caption.textContent + ' ' + cell.textContent);
}
for (const figure of document.querySelectorAll('figure')) {
  const shown = [...figure.querySelectorAll('svg:not(.key)')].filter(svg => svg.getBoundingClientRect().width);
  seen.charts += shown.length;
  if (shown.length != 1) seen.wrong.push(figure.textContent.slice(0, 40));
  for (const svg of shown) {
    const texts = [...svg.querySelectorAll('text')].map(t => [t.getBoundingClientRect(), t.textContent]);
    texts.forEach(([a, one], i) => texts.slice(i + 1).forEach(([b, other]) => {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        seen.over.push(one.trim() + ' over ' + other.trim()); }));
  }
}
const said = document.createElement('pre');
said.id = 'probe';
said.textContent = JSON.stringify(seen);
document.body.replaceChildren(said);
</script>";

/// Chromium with a page, in a theme and a window of this size.
fn chromium(
    scratch: &Scratch,
    (dark, (width, height)): (bool, (u32, u32)),
    page: &Path,
    what: &str,
) -> Vec<u8> {
    let mut chromium = tool("chromium-headless-shell", "chromium-headless-shell");
    chromium.args([
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
    ]);
    chromium.arg(format!("--user-data-dir={}", scratch.path("browser").display()));
    chromium.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)));
    chromium.arg(format!("--window-size={width},{height}")).arg(what);
    chromium.arg(format!("file://{}", page.display())).env("HOME", scratch.path(""));
    run(&mut chromium, b"").exits(0).stdout
}

/// What a reader sees of a page in a theme and a window.
fn seen(scratch: &Scratch, page: &str, (dark, width): (bool, u32)) -> Value {
    let probed = scratch.path("probed.html");
    fs::write(&probed, page.replace("</body>", &format!("{PROBE}</body>"))).expect("written");
    let said = chromium(scratch, (dark, (width, width * 5 / 4)), &probed, "--dump-dom");
    let said = String::from_utf8(said).expect("text");
    let json = said.split_once("<pre id=\"probe\">").expect("the probe ran").1;
    let json = json.split_once("</pre>").expect("its end").0;
    let json = json.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    serde_json::from_str(&json).expect("JSON")
}

/// Nothing is cut off, faint, without its chart, or over something else.
fn is_readable(seen: &Value, at: &str) {
    for list in ["beyond", "faint", "wrong", "over", "pale"] {
        assert_eq!(seen[list], Value::Array(Vec::new()), "{list}: {at}");
    }
    assert!(seen["wide"].as_u64() <= seen["width"].as_u64(), "it scrolls sideways: {at}");
}

/// Results of one run are put to those of another one.
fn join(run: &Path, other: &Path) {
    let read = |dir: &Path| -> Value {
        serde_json::from_slice(&fs::read(dir.join("run.json")).expect("a run")).expect("JSON")
    };
    let (mut about, mut more) = (read(run), read(other));
    for list in ["/settings/experiments", "/left_out"] {
        let list_of = |about: &mut Value| about.pointer_mut(list).expect("a list").take();
        let (all, new) = (list_of(&mut about), list_of(&mut more));
        let all = all.as_array().expect("a list").iter().chain(new.as_array().expect("a list"));
        let all = all.cloned().collect::<Vec<_>>();
        *about.pointer_mut(list).expect("a list") = all.into();
    }
    let new = more["contenders"].as_object().expect("a map").clone();
    about["contenders"].as_object_mut().expect("a map").extend(new);
    fs::write(run.join("run.json"), about.to_string()).expect("written");
    let mut results = fs::read(run.join("results.jsonl")).expect("results");
    results.extend(fs::read(other.join("results.jsonl")).expect("results"));
    fs::write(run.join("results.jsonl"), results).expect("written");
}

/// A page with every section: charts, maps and tables of all kinds, servers, programs of others.
fn report(scratch: &Scratch) -> std::path::PathBuf {
    let (out, served) = (scratch.path("out"), scratch.path("served"));
    let small = |against: &str| {
        let mut lab = scratch.ucrypt(&["lab", "run", "--quick", "--size", "16M", "--time", "2"]);
        lab.args(["--rounds", "2", "--against", against, "--out"]);
        lab
    };
    let mut lab = small("raw,ucrypt,ucrypt:inline,ucrypt:unbound");
    lab.arg(&out).args(["block-sweep", "workqueues", "heat-map", "added-latency", "other-ssd"]);
    run(lab.args(["instant", "sorted-writes", "request-merge"]), b"").exits(0);
    let against = "ucrypt,ucrypt:inline,ucrypt-nbd,ucrypt-loop,loop,copy-nbd,qemu-nbd,nbdkit";
    let mut lab = small(against);
    run(lab.arg(&served).args(["exports", "kernel-tree", "many-drives"]), b"").exits(0);
    join(&out, &served);
    let mut sim = scratch.ucrypt(&["lab", "sim", "instant", "request-merge", "--quick", "--out"]);
    run(sim.arg(&out), b"").passes();
    let page = run(scratch.ucrypt(&["lab", "report"]).arg(&out), b"").text();
    page.trim_end().into()
}

/// Pixels between the margins of a sheet of A4: Chromium has margins of 1 cm.
const PAPER: u32 = 717;

fn can_be_printed(scratch: &Scratch, page: &Path) {
    let paper = scratch.path("page.pdf");
    let what = format!("--print-to-pdf={}", paper.display());
    // Paper is light in both themes.
    chromium(scratch, (true, (1280, 1600)), page, &what);
    let bytes = fs::read(&paper).expect("a document");
    assert!(bytes.starts_with(b"%PDF-"), "{} bytes", bytes.len());
    let sheets = bytes.windows(12).filter(|at| *at == b"/Type /Page\n").count();
    assert!(sheets > 5, "{sheets} sheets in {} bytes", bytes.len());
    keep(&paper, "report.pdf");
    // The same layout in a window as wide as the paper, where it can be looked at.
    let text = fs::read_to_string(page).expect("a page");
    assert_eq!(text.matches("@media print").count(), 1);
    let text = text.replace("@media print", "@media all");
    let printed = seen(scratch, &text, (false, PAPER));
    is_readable(&printed, &format!("on paper: {printed}"));
}

/// Keeps a picture for who wants to look at it.
fn keep(file: &Path, name: &str) {
    if let Some(keep) = std::env::var_os("UCRYPT_KEEP_SCREENSHOTS") {
        fs::copy(file, Path::new(&keep).join(name)).expect("kept");
    }
}

/// Width and height of a picture (PNG specification, 11.2.2: IHDR).
fn dimensions(png: &[u8]) -> Option<(u32, u32)> {
    let number = |at: usize| Some(u32::from_be_bytes(png.get(at..at + 4)?.try_into().ok()?));
    png.starts_with(b"\x89PNG\r\n\x1a\n").then(|| number(16).zip(number(20))).flatten()
}

#[test]
fn every_section_of_the_page_can_be_read_in_both_themes_on_a_phone_on_a_desk_and_on_paper() {
    let scratch = Scratch::new();
    let page = report(&scratch);
    let text = fs::read_to_string(&page).expect("a page");
    for dark in [false, true] {
        for width in [390, 1280] {
            let seen = seen(&scratch, &text, (dark, width));
            let at = format!("dark: {dark}, {width} pixels: {seen}");
            assert_eq!(seen["dark"], dark, "{at}");
            assert_eq!(seen["width"], width, "{at}");
            is_readable(&seen, &at);
            assert!(seen["charts"].as_u64() > Some(15), "{at}");
            // Two directions, by speed and by p99, of three policies.
            assert_eq!(seen["maps"], 2 * 2 * 3, "{at}");
            let sections = seen["sections"].as_array().expect("a list");
            for experiment in ucrypt_lab::catalogue::ALL {
                assert!(sections.iter().any(|it| it == experiment.name), "{}", experiment.name);
            }
            for part in ["short", "summary", "sim", "machine"] {
                assert!(sections.iter().any(|it| it == part), "{part}: {at}");
            }
            // From the first line to the last.
            let height = seen["height"].as_u64().expect("a height");
            let size = (width, u32::try_from(height).expect("pixels"));
            let picture = scratch.path("picture.png");
            let what = format!("--screenshot={}", picture.display());
            chromium(&scratch, (dark, size), &page, &what);
            let bytes = fs::read(&picture).expect("a picture");
            assert_eq!(dimensions(&bytes), Some(size), "{at}");
            assert!(bytes.len() > 100_000, "{} bytes", bytes.len());
            let theme = if dark { "dark" } else { "light" };
            keep(&picture, &format!("report-{theme}-{width}.png"));
        }
    }
    can_be_printed(&scratch, &page);
}
