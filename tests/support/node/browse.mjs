// Opens a page in a browser, and tells what it shows: a line of JSON for each line that comes in. A line may ask for something first:
// open URL, click SELECTOR, hover SELECTOR, width PIXELS, dark, light, picture FILE. After "fits" it tells what does not fit.
// node browse.mjs URL WIDTH
import { writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import chromium from "@sparticuz/chromium";
import { chromium as browsers } from "playwright-core";

const [url, width] = process.argv.slice(2);
const options = { executablePath: await chromium.executablePath(), args: chromium.args };
// As one process, which it is on AWS Lambda, it crashes now and then while it starts. And another test may be unpacking it.
const launched = (tries) => browsers.launch(options).catch(async (error) => {
  if (tries <= 1) throw error;
  await new Promise((resolve) => setTimeout(resolve, 1000));
  return launched(tries - (error.message.includes("ETXTBSY") ? 0.1 : 1));
});
const browser = await launched(3);
const page = await browser.newPage({ viewport: { width: Number(width), height: 900 } });
const errors = [];
const asked = new Set(); // whom it asked for something
let answers = 0; // how many answers it got
page.on("request", (request) => asked.add(new URL(request.url()).origin));
page.on("requestfinished", () => { answers += 1; });
page.on("pageerror", (error) => errors.push(String(error)));
page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });
await page.goto(url);
const fits = () => {
  const all = (selector) => [...document.querySelectorAll(`article ${selector}`)];
  const wide = (each) => each.scrollWidth > each.clientWidth + 1;
  const scrolls = (each) => ["auto", "scroll"].includes(getComputedStyle(each).overflowX);
  // A name that begins on one line and ends on the next.
  const broken = (each) => !each.textContent.trim().includes(" ") && each.getClientRects().length > 1;
  const tables = all("table").map((each) => each.closest(".md-typeset__scrollwrap") ?? each).filter(wide);
  return {
    page: document.documentElement.scrollWidth - window.innerWidth,
    code: all("pre > code").filter(wide).map((each) => each.textContent),
    scrolled: tables.filter(scrolls).length,
    cut: tables.filter((each) => !scrolls(each)).length,
    names: all("td code, p code, li code").filter(broken).map((each) => each.textContent),
  };
};
// The page as a picture that is dark or light as its reader's system.
const drawn = async () => {
  const css = await (await fetch(document.querySelector("link[rel=stylesheet]").href)).text();
  const shown = document.body.cloneNode(true);
  const page = document.createElement("div");
  page.className = "body";
  page.append(...shown.childNodes);
  const { width, height } = document.body.getBoundingClientRect();
  const html = new XMLSerializer().serializeToString(page);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">
<style>${css.replace(/^body/gm, ".body").replaceAll("&", "&amp;").replaceAll(">", "&gt;")}</style>
<foreignObject width="100%" height="100%">${html}</foreignObject>
</svg>
`;
};
for await (const line of createInterface({ input: process.stdin })) {
  const [what, ...rest] = line.split(" ");
  const about = rest.join(" ");
  if (what === "end") break;
  if (what === "open") await page.goto(about);
  if (what === "fits") {
    console.log(JSON.stringify(await page.evaluate(fits)));
    continue;
  }
  if (what === "click") await page.click(about);
  if (what === "hover") await page.hover(about);
  if (what === "width") await page.setViewportSize({ width: Number(about), height: 900 });
  if (what === "dark" || what === "light") await page.emulateMedia({ colorScheme: what });
  if (what === "picture") writeFileSync(about, await page.evaluate(drawn));
  // At one moment: the page shows a newer look every second.
  const seen = await page.evaluate(() => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    const texts = (selector) => all(selector).filter((each) => !each.hidden).map((each) => each.textContent);
    return {
      title: document.title,
      state: texts("#state"),
      about: texts("#about"),
      trouble: texts("#trouble"),
      tiles: texts("#tiles .tile"),
      streams: texts("#streams h2"),
      heads: texts("#streams thead th"),
      rows: all("#streams tbody tr").map((row) => [...row.cells].map((cell) => cell.textContent)),
      states: texts("#streams .states span"),
      slow: all("#streams tr.slow").length,
      folds: all("#streams button").filter((each) => !each.hidden).map((each) => each.textContent),
      remedies: texts("#remedies p"),
      events: texts("#events li"),
      charts: all(".chart svg").map((each) => each.getAttribute("aria-label")),
      lines: all("svg .line").map((each) => each.getAttribute("d").split(/[ML]/).length - 1),
      cut: all(".table").filter((each) => each.scrollWidth > each.clientWidth).length,
      background: getComputedStyle(document.body).backgroundColor,
      overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    };
  });
  console.log(JSON.stringify({ ...seen, errors, answers, asked: [...asked] }));
}
await browser.close();
