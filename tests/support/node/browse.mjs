// Opens a page in a browser, and tells what it shows: a line of JSON for each line that comes in.
// node browse.mjs URL WIDTH [SCREENSHOT]
import { createInterface } from "node:readline";
import chromium from "@sparticuz/chromium";
import { chromium as browsers } from "playwright-core";

const [url, width, screenshot] = process.argv.slice(2);
const browser = await browsers.launch({ executablePath: await chromium.executablePath(), args: chromium.args });
const page = await browser.newPage({ viewport: { width: Number(width), height: 900 } });
const errors = [];
page.on("pageerror", (error) => errors.push(String(error)));
page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });
await page.goto(url);
for await (const line of createInterface({ input: process.stdin })) {
  if (line === "end") break;
  // At one moment: the page shows a newer look every second.
  const seen = await page.evaluate(() => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    const texts = (selector) => all(selector).filter((each) => !each.hidden).map((each) => each.textContent);
    return {
      title: document.title,
      heads: texts("thead th"),
      rows: all("#shards tr").map((row) => [...row.cells].map((cell) => cell.textContent)),
      slow: all("#shards tr.slow").length,
      about: texts("#about"),
      trouble: texts("#trouble"),
      causes: texts("#causes p"),
      events: texts("#events li"),
    };
  });
  console.log(JSON.stringify({ ...seen, errors }));
}
if (screenshot) await page.screenshot({ path: screenshot });
await browser.close();
