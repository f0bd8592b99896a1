//! The page of `ucrypt lab report` in a real browser: headless Chromium lays it out in both themes, as
//! wide as a phone and as a desk, and tells what a reader would see.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::process::{run, tool};
use crate::scratch::Scratch;

/// Put at the end of a copy of the page: it says what does not fit, and what cannot be read.
const PROBE: &str = r"<script>
const seen = { maps: 0, pale: [], dark: matchMedia('(prefers-color-scheme: dark)').matches, width: innerWidth,
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
  if (!el.closest('.table') && (box.right > innerWidth + 1 || box.left < -1))
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

/// Chromium with a page, in a theme and a window.
fn chromium(scratch: &Scratch, (dark, width): (bool, u32), page: &Path, what: &str) -> Vec<u8> {
    let mut chromium = tool("chromium-headless-shell", "chromium-headless-shell");
    chromium.args([
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
    ]);
    chromium.arg(format!("--user-data-dir={}", scratch.path("browser").display()));
    chromium.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)));
    chromium.arg(format!("--window-size={width},{}", width * 5 / 4)).arg(what);
    chromium.arg(format!("file://{}", page.display())).env("HOME", scratch.path(""));
    run(&mut chromium, b"").exits(0).stdout
}

/// A page with charts of all kinds.
fn report(scratch: &Scratch) -> std::path::PathBuf {
    let out = scratch.path("out");
    let mut lab = scratch.ucrypt(&["lab", "run", "--quick", "--size", "16M", "--time", "2"]);
    lab.args(["--rounds", "2", "--against", "raw,ucrypt,ucrypt:inline,ucrypt:unbound"]);
    lab.args(["block-sweep", "workqueues", "heat-map", "added-latency", "other-ssd", "instant"]);
    lab.args(["sorted-writes", "request-merge", "--out"]);
    run(lab.arg(&out), b"").exits(0);
    let mut sim = scratch.ucrypt(&["lab", "sim", "instant", "request-merge", "--quick", "--out"]);
    run(sim.arg(&out), b"").passes();
    let page = run(scratch.ucrypt(&["lab", "report"]).arg(&out), b"").text();
    page.trim_end().into()
}

#[test]
fn the_page_can_be_printed() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut lab = scratch.ucrypt(&["lab", "run", "instant", "added-latency", "--quick"]);
    lab.args(["--size", "16M", "--time", "2", "--rounds", "1", "--out"]);
    run(lab.arg(&out), b"").exits(0);
    run(scratch.ucrypt(&["lab", "report"]).arg(&out), b"").passes();
    let (page, paper) = (out.join("report.html"), scratch.path("page.pdf"));
    let what = format!("--print-to-pdf={}", paper.display());
    // Paper is light in both themes.
    chromium(&scratch, (true, 1280), &page, &what);
    let bytes = fs::read(&paper).expect("a document");
    assert!(bytes.starts_with(b"%PDF-"), "{} bytes", bytes.len());
    // Charts and tables of two experiments do not fit on a sheet.
    let sheets = bytes.windows(12).filter(|at| *at == b"/Type /Page\n").count();
    assert!(sheets > 1, "{sheets} sheets in {} bytes", bytes.len());
    if let Some(keep) = std::env::var_os("UCRYPT_KEEP_SCREENSHOTS") {
        fs::copy(&paper, Path::new(&keep).join("report.pdf")).expect("kept");
    }
}

#[test]
fn the_page_can_be_read_in_both_themes_on_a_phone_and_on_a_desk() {
    let scratch = Scratch::new();
    let page = report(&scratch);
    let probed = scratch.path("probed.html");
    let text = fs::read_to_string(&page).expect("a page");
    fs::write(&probed, text.replace("</body>", &format!("{PROBE}</body>"))).expect("written");
    for dark in [false, true] {
        for width in [390, 1280] {
            let said = chromium(&scratch, (dark, width), &probed, "--dump-dom");
            let said = String::from_utf8(said).expect("text");
            let json = said.split_once("<pre id=\"probe\">").expect("the probe ran").1;
            let json = json.split_once("</pre>").expect("its end").0;
            let json = json.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
            let seen: Value = serde_json::from_str(&json).expect("JSON");
            let at = format!("dark: {dark}, {width} pixels: {seen}");
            assert_eq!(seen["dark"], dark, "{at}");
            assert_eq!(seen["width"], width, "{at}");
            assert!(seen["wide"].as_u64() <= Some(width.into()), "the page scrolls sideways: {at}");
            for list in ["beyond", "faint", "wrong", "over", "pale"] {
                assert_eq!(seen[list], Value::Array(Vec::new()), "{list}: {at}");
            }
            assert!(seen["charts"].as_u64() > Some(10), "{at}");
            let picture = scratch.path("picture.png");
            let what = format!("--screenshot={}", picture.display());
            chromium(&scratch, (dark, width), &page, &what);
            let bytes = fs::read(&picture).expect("a picture");
            assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{} bytes", bytes.len());
            if let Some(keep) = std::env::var_os("UCRYPT_KEEP_SCREENSHOTS") {
                let theme = if dark { "dark" } else { "light" };
                let name = format!("report-{theme}-{width}.png");
                fs::copy(&picture, Path::new(&keep).join(name)).expect("kept");
            }
        }
    }
}
