// Shows the newest look, every second. Of thousands of shards it shows the first: the server sends the worst first.
"use strict";

const MOST = 200;
const byId = (id) => document.getElementById(id);

function duration(seconds) {
  if (seconds === null) return "-";
  if (seconds < 59.95) return `${seconds.toFixed(1)}s`;
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  for (const [unit, size, lower, small] of [["d", 86400, "h", 3600], ["h", 3600, "m", 60], ["m", 60, "s", 1]]) {
    if (whole >= size) return `${Math.floor(whole / size)}${unit}${two(Math.floor((whole % size) / small))}${lower}`;
  }
}

function size(bytes) {
  if (bytes === null) return "-";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) { bytes /= 1000; unit += 1; }
  return `${unit ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

function trend(shard) {
  if (shard.trend === null || shard.secondsBehind === null || shard.secondsBehind < 1 || Math.abs(shard.trend) < 0.02) return "";
  return shard.trend > 0 ? "\u2191" : "\u2193";
}

function row(shard) {
  const line = document.createElement("tr");
  line.className = shard.cause ? "slow" : "";
  const cells = [
    shard.stream, shard.shardId, shard.state ?? "-", duration(shard.secondsBehind), trend(shard),
    duration(shard.caughtUpInSeconds), size(shard.bytesInPerSecond), size(shard.bytesProcessedPerSecond),
    size(shard.bufferedBytes), duration(shard.waitingSeconds), duration(shard.lastEventSeconds),
    shard.failures ?? "-", shard.fetcher ?? "-", shard.cause ?? "",
  ];
  for (const text of cells) line.insertCell().textContent = text;
  return line;
}

function show(look) {
  document.title = `${look.application} - kinesis-efo top`;
  byId("application").textContent = look.application;
  const parts = [look.runs.join(", ") || "no run", `${look.shards.length} shards`];
  if (look.bufferedBytes !== null) parts.push(`buffered ${size(look.bufferedBytes)} of ${size(look.roomBytes)}`);
  if (look.plannerCpu !== null) parts.push(`planner ${Math.round(100 * look.plannerCpu)} % of a core`);
  if (look.asOfSeconds > 5) parts.push(`as of ${duration(look.asOfSeconds)} ago`);
  byId("about").textContent = parts.join(", ");
  trouble(look.trouble);
  byId("shards").replaceChildren(...look.shards.slice(0, MOST).map(row));
  byId("more").hidden = look.shards.length <= MOST;
  byId("more").textContent = `and ${look.shards.length - MOST} more, none worse`;
  const slow = new Set(look.shards.map((shard) => shard.cause));
  byId("causes").replaceChildren(...look.causes.filter((cause) => slow.has(cause.name)).map((cause) => {
    const line = document.createElement("p");
    line.textContent = `${cause.name}: ${cause.what}. What to do: ${cause.remedy} (${cause.runbook})`;
    return line;
  }));
  byId("events").replaceChildren(...look.events.slice().reverse().map((event) => {
    const line = document.createElement("li");
    line.textContent = `${event.at}  ${event.text}`;
    return line;
  }));
}

function trouble(text) {
  byId("trouble").hidden = !text;
  byId("trouble").textContent = text ?? "";
}

async function look() {
  try {
    const found = await (await fetch("look.json")).json();
    if (found) show(found);
  } catch (error) {
    trouble(`kinesis-efo top does not answer any more: ${error.message}`);
  }
  setTimeout(look, 1000);
}

look();
