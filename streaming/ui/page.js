"use strict";

const EVERY_MS = 5000;
const LOSSES = { EVICTED: "evicted", EXPIRED: "expired", LEDGER_DELETED: "trimmed", QUARANTINED: "quarantined" };
const main = document.getElementById("main");
const pause = document.getElementById("pause");
let refresh = async () => {};
let timer = 0;
let changes = false;

// -- elements. Names come from clients: they become text nodes and attributes, never HTML.

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((each) => each !== null && each !== undefined));
  return element;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// -- numbers and times in words

const count = (value) => (value === null || value === undefined ? "" : Math.round(value).toLocaleString("en"));
const rate = (value) => (value >= 10 || value === 0 ? count(value) : value.toFixed(2));
const percent = (value) => (value === null || value === undefined ? "" : `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`);

function size(value) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(value) < 1000) return unit === "B" ? `${Math.round(value)} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= length) return `${(seconds / length).toFixed(1)} ${unit}`;
  }
  return seconds < 10 ? `${seconds.toFixed(2)} s` : `${seconds.toFixed(0)} s`;
}

const utc = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 19);
const time = (ms) => h("time", { datetime: new Date(ms).toISOString() }, utc(ms));
const short = (topic) => topic.replace("persistent://", "");
const plural = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
const entries = (number) => (number === 1 ? "1 entry" : `${count(number)} entries`);

// -- the server

async function ask(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters || {})) if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  let answer;
  try {
    answer = await fetch(`api/${path}?${query}`);
  } catch {
    throw new Error("the server does not answer: it has ended, or is busy");
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

// Several parts of the page, and its head, show the overview: they share one request.
let asked = null;
const askOverview = () => (asked ??= ask("overview").finally(() => { asked = null; }));

// -- pieces

const link = (topic, text) => h("a", { href: `#/topic/${encodeURIComponent(topic)}`, "data-key": `topic ${topic}` }, text || short(topic));

// The roles stay when a narrow screen shows each row as a block.
function table(caption, columns, rows) {
  const cell = (tag, role, [name, , kind], value, scope) => h(tag, { role, class: kind, scope, "data-label": name }, value);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption, "data-key": `table ${caption}` },
    h("table", { role: "table" }, h("caption", {}, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((column) => cell("th", "columnheader", column, column[0], "col")))),
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, columns.map((column) => cell("td", "cell", column, column[1](row))))))));
}

function quotaMeter(ratio, label) {
  if (ratio === null || ratio === undefined) return "no quota";
  const kind = ratio >= 1 ? "bad" : ratio >= 0.8 ? "warn" : "";
  return [h("meter", { min: 0, max: 1, low: 0.8, high: 0.99, optimum: 0, value: Math.min(ratio, 1), "aria-label": `${label}: ${percent(ratio)} used` }),
    " ", h("span", { class: kind }, percent(ratio))];
}

const WIDTH = 560, HEIGHT = 190, LEFT = 80, BOTTOM = 26, TOP = 12, RIGHT = 12;

// Lines over time, or bars. `lines`: [name, values] with null where nothing is known.
function plot(title, times, lines, shown, bars) {
  const known = lines.flatMap(([, values]) => values).filter((value) => value !== null);
  if (!known.length) return h("figure", {}, h("h3", {}, title), h("p", { class: "note" }, "No samples yet."));
  const most = Math.max(...known) || 1, first = times[0], last = times[times.length - 1];
  const x = (at) => LEFT + (WIDTH - LEFT - RIGHT) * (last > first ? (at - first) / (last - first) : 0.5);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
  const parts = [0, 0.5, 1].map((share) => [
    s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(most * share), y2: y(most * share) }),
    s("text", { x: LEFT - 6, y: y(most * share) + 5, "text-anchor": "end" }, shown(most * share))]);
  const days = utc(first).slice(0, 10) !== utc(last).slice(0, 10);
  for (const [at, anchor] of last > first ? [[first, "start"], [(first + last) / 2, "middle"], [last, "end"]] : [[first, "middle"]]) {
    parts.push(s("text", { x: x(at), y: HEIGHT - 6, "text-anchor": anchor }, days ? utc(at).slice(5, 16) : utc(at).slice(11, 19)));
  }
  lines.forEach(([name, values], number) => {
    if (bars) {
      const width = Math.max(1, (WIDTH - LEFT - RIGHT) / times.length - 1);
      values.forEach((value, place) => {
        const left = LEFT + ((WIDTH - LEFT - RIGHT) * place) / times.length;
        if (value) parts.push(s("rect", { class: `bar f${number}`, x: left, width, y: y(value), height: HEIGHT - BOTTOM - y(value) }, s("title", {}, `${utc(times[place])}: ${shown(value)}`)));
      });
      return;
    }
    let path = "", open = false;
    values.forEach((value, place) => {
      if (value !== null) path += `${open ? "L" : "M"}${x(times[place]).toFixed(1)} ${y(value).toFixed(1)}`;
      open = value !== null;
    });
    // A single sample would be a line without length, which nobody sees.
    parts.push(s("path", { class: `line c${number % 6}`, d: `${path}h0.1`, "stroke-linecap": "round" }, s("title", {}, name)));
  });
  const now = lines.map(([name, values]) => {
    const those = values.filter((value) => value !== null);
    return `${name}: ${those.length ? `${shown(those[those.length - 1])} at the end, at most ${shown(Math.max(...those))}` : "unknown"}`;
  }).join("; ");
  return h("figure", {}, h("h3", {}, title),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, ${utc(first)} to ${utc(last)} UTC. ${now}` }, parts),
    lines.length < 2 ? null : h("figcaption", { class: "legend" }, lines.map(([name], number) => h("span", {}, h("span", { class: `key f${number % 6}` }), name))));
}

function historyPlots(history) {
  if (!history) return [];
  const { times, storage, backlog, subscriptions } = history;
  const parts = [];
  if (backlog) parts.push(plot("Backlog, entries", times, [["all subscriptions", backlog], ...Object.entries(subscriptions || {})], count));
  parts.push(plot("Storage", times, [["storage", storage]], size));
  if (history.rateIn) parts.push(plot("Messages per second", times, [["in", history.rateIn], ["out", history.rateOut]], rate));
  if (history.stored) parts.push(plot(`Entries in every ${span((times[1] - times[0]) / 1000)}`, times, ["stored", "sent", "expired", "evicted"].map((name) => [name, history[name]]), count));
  return parts;
}

function batchPlot(batches) {
  const known = batches.filter((each) => each.seconds !== null);
  return known.length ? plot("Micro-batches: how long each took", known.map((each) => each.time), [["seconds", known.map((each) => each.seconds)]], span, true) : null;
}

function reason(row) {
  if (row.kind === "QUARANTINED") return `${row.rule}: ${row.cause}`;
  return row.policy ? `${row.cause} — ${row.policy}` : row.cause;
}

function what(row) {
  if (row.kind === "LEDGER_DELETED") return `ledger ${row.ledger_id}: ${entries(row.entries)}, ${size(row.size)}`;
  if (row.kind === "QUARANTINED") return `record ${row.partition}:${row.offset}`;
  return `${entries(row.entries)}, to ${row.after_ledger}:${row.after_entry}`;
}

const lossTable = (caption, rows, ofTopic) => rows.length ? table(caption, [
  ["time (UTC)", (row) => time(row.clock), "when"],
  ["what", (row) => h("span", { class: `badge ${row.kind === "LEDGER_DELETED" ? "" : row.kind === "EXPIRED" ? "warn" : "bad"}` }, LOSSES[row.kind]), "text"],
  ...(ofTopic ? [] : [["topic", (row) => (row.topic ? link(row.topic) : ""), "text"]]),
  ["subscription", (row) => row.subscription || "", "text"],
  ["how much", what, "text"],
  ["why: rule and policy", reason, "text"]], rows) : h("p", { class: "note" }, "None.");

const topicTable = (rows) => table("Topics", [
  ["topic", (row) => link(row.topic), "text"],
  ["backlog", (row) => count(row.backlog)], ["backlog size", (row) => size(row.backlogSize)], ["storage", (row) => size(row.storage)],
  ["quota used", (row) => quotaMeter(row.quota, `quota of ${short(row.topic)}`), "text"],
  ["in /s", (row) => rate(row.rateIn)], ["out /s", (row) => rate(row.rateOut)],
  ["producers", (row) => count(row.producers)], ["subscriptions", (row) => count(row.subscriptions)], ["consumers", (row) => count(row.consumers)],
  ["duplicates", (row) => count(row.duplicates)]], rows);

const subscriptionTable = (rows, withTopic) => table("Subscriptions", [
  ["subscription", (row) => row.subscription, "text"],
  ...(withTopic ? [["topic", (row) => link(row.topic), "text"]] : []),
  ["backlog", (row) => count(row.backlog)], ["backlog size", (row) => size(row.backlogSize)],
  ["unacked", (row) => [count(row.unacked), row.blocked ? h("span", { class: "bad" }, " blocked") : null]], ["delayed", (row) => count(row.delayed)],
  ["consumers", (row) => count(row.consumers)], ["out /s", (row) => rate(row.rateOut)], ["acks /s", (row) => rate(row.rateAck)],
  ["expired", (row) => count(row.expired)], ["evicted", (row) => count(row.evicted)]], rows);

const more = (value, shown) => (value === null ? "" : value > 0 ? `+${shown(value)}` : shown(value).replace("-", "−"));
const seen = (ms) => (ms === null ? h("span", { class: "bad" }, "never") : [time(ms), ` (${span(Math.max(0, Date.now() - ms) / 1000)} ago)`]);
const twinTable = (rows, found) => [
  cards([["mirrored topics", count(found.topics)], ["rows that differ", count(found.differ)], ["the cluster was last seen (UTC)", seen(found.seen)]]),
  table("What is here more than on the source, the largest drift first", [
    ["topic", (row) => link(row.topic), "text"],
    ["subscription", (row) => (row.subscription === null ? h("i", {}, "storage") : row.subscription), "text"],
    ["entries", (row) => more(row.entries, count)], ["mark-delete", (row) => more(row.markDelete, count)], ["unacked", (row) => more(row.messages, count)], ["bytes", (row) => more(row.size, size)],
    ["why", (row) => row.cause, "text"], ["source seen (UTC)", (row) => seen(row.seen), "when"]], rows)];

const quotaTable = (rows) => table("Backlog quotas, the most used first", [
  ["topic", (row) => link(row.topic), "text"],
  ["quota", (row) => (row.type === "size" ? "destination_storage" : "message_age"), "text"],
  ["used", (row) => quotaMeter(row.ratio, `${row.type} quota of ${short(row.topic)}`), "text"],
  ["headroom", (row) => { const left = Math.max(0, row.limit - row.used); return row.type === "size" ? size(left) : span(left); }],
  ["limit", (row) => (row.type === "size" ? size(row.limit) : span(row.limit))],
  ["times evicted", (row) => count(row.evictions)]], rows);

function cards(values) {
  return h("dl", { class: "cards" }, values.filter(([, value]) => value !== "" && value !== null && value !== undefined).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// Replaces what an element shows, and keeps the focus and how far its tables are scrolled.
function show(element, ...children) {
  const focused = document.activeElement?.dataset?.key;
  const scrolled = new Map([...element.querySelectorAll(".scroll")].map((each) => [each.dataset.key, each.scrollLeft]));
  const inside = element.contains(document.activeElement);
  element.replaceChildren(...children.flat(9).filter((each) => each !== null && each !== undefined));
  for (const each of element.querySelectorAll(".scroll")) each.scrollLeft = scrolled.get(each.dataset.key) || 0;
  if (inside && focused) [...element.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused)?.focus({ preventScroll: true });
}

const failed = (element, error) => show(element, h("p", { class: "error", role: "alert" }, error.message));

// Fills an element when it is called; a part that fails says so in its place.
function part(load) {
  const element = h("div", { "aria-live": "off" }, h("p", { class: "note" }, "…"));
  let loads = 0;
  element.load = async () => {
    const number = ++loads;
    try {
      const found = await load();
      if (number === loads) show(element, found);
    } catch (error) {
      if (number === loads) failed(element, error);
    }
  };
  return element;
}

function pager(state, total, change) {
  const pages = Math.max(1, Math.ceil(total / 50));
  const step = (by, text) => h("button", { type: "button", "data-key": text, disabled: state.page + by < 0 || state.page + by >= Math.min(pages, 200), onclick: () => { state.page += by; change(); } }, text);
  return pages < 2 ? null : h("div", { class: "tools" }, step(-1, "Previous page"), h("span", {}, `page ${state.page + 1} of ${pages}`), step(1, "Next page"));
}

function searchable(name, path, orders, draw, none) {
  const state = { search: "", order: orders[0][0], page: 0 };
  const rows = part(async () => {
    const found = await ask(path, state);
    return [found.total ? draw(found.rows, found) : h("p", { class: "note" }, (!state.search && none) || `No ${name}.`), pager(state, found.total, () => rows.load()),
      h("p", { class: "note", role: "status" }, `${plural(found.total, name.slice(0, -1))}${state.search ? " found" : ""}`)];
  });
  const tools = h("form", { role: "search", onsubmit: (event) => event.preventDefault() },
    h("label", {}, "Name contains", h("input", { type: "search", autocomplete: "off", oninput: (event) => { state.search = event.target.value; state.page = 0; rows.load(); } })),
    h("label", {}, "Largest first by", h("select", { onchange: (event) => { state.order = event.target.value; state.page = 0; rows.load(); } }, orders.map(([value, text]) => h("option", { value }, text)))));
  return [tools, rows];
}

const NO_ACKS = "Acks are not in the output rows, so a backlog is known at the end alone.";

// -- pages. Each gives its title, what it shows, and the parts that change.

function overview() {
  const top = part(async () => {
    const { status, totals } = await askOverview();
    return cards([["topics", count(totals.topics)], ["subscriptions", count(totals.subscriptions)], ["backlog, entries", count(totals.backlog)],
      ["storage", size(totals.storage)], ["in, messages/s", rate(totals.rateIn)], ["out, messages/s", rate(totals.rateOut)],
      ["records behind", count(status.behind)], ["records", count(status.records)], ["clock lag", span(status.clockLag)], ["state", status.stateBytes ? size(status.stateBytes) : ""]]);
  });
  const quotas = part(async () => {
    const found = (await askOverview()).quotas;
    return found.length ? quotaTable(found) : h("p", { class: "note" }, "No topic has a backlog and a quota.");
  });
  const plots = part(async () => {
    const [history, batches] = await Promise.all([ask("history"), ask("batches")]);
    const found = [historyPlots(history), batchPlot(batches)].flat().filter((each) => each);
    return [found.length ? h("div", { class: "plots" }, found) : null, history?.stored ? h("p", { class: "note" }, NO_ACKS) : null];
  });
  const losses = part(async () => lossTable("The latest evictions and expiries", (await ask("latest", { kinds: "EVICTED,EXPIRED", most: 10 })).rows));
  return ["Overview", [top, plots, h("section", {}, h("h2", {}, "Quota headroom"), quotas), h("section", {}, h("h2", {}, "Latest evictions and expiries"), losses, h("p", {}, h("a", { href: "#/losses" }, "All of them, and other kinds")))], [top, plots, quotas, losses]];
}

function topics() {
  const [tools, rows] = searchable("topics", "topics", [["storage", "storage"], ["backlog", "backlog"], ["backlogSize", "backlog size"], ["producers", "producers"], ["subscriptions", "subscriptions"], ["messagesIn", "messages published"]], topicTable);
  return ["Topics", [tools, rows], [rows]];
}

function subscriptions() {
  const [tools, rows] = searchable("subscriptions", "subscriptions", [["backlog", "backlog"], ["backlogSize", "backlog size"], ["unacked", "unacknowledged messages"], ["delayed", "delayed"], ["consumers", "consumers"], ["expired", "expired"], ["evicted", "evicted"]], (found) => subscriptionTable(found, true));
  return ["Subscriptions", [tools, rows], [rows]];
}

function twin() {
  const [tools, rows] = searchable("rows", "twin", [["drift", "drift"], ["entries", "entries"], ["markDelete", "mark-delete positions"], ["messages", "unacknowledged messages"], ["size", "bytes"], ["unseen", "time since the source was seen"]],
    twinTable, "Nothing is mirrored here. magnetar mirror follows a cluster.");
  return ["Twin", [h("p", { class: "note" }, "How topics that are mirrored from a cluster differ from their sources: what they store, and the backlogs and mark-delete positions of their subscriptions."), tools, rows], [rows]];
}

const latestOf = (caption, parameters) => part(async () => {
  const found = await ask("latest", parameters());
  return [lossTable(caption, found.rows, parameters().topic), found.complete ? null : h("p", { class: "note" }, "There are too many rows to search all of them: older ones may be missing.")];
});

function losses() {
  const chosen = new Set(["EVICTED", "EXPIRED"]);
  const rows = latestOf("The latest, newest first", () => ({ kinds: [...chosen].join(",") }));
  const tools = h("form", { onsubmit: (event) => event.preventDefault() }, h("fieldset", {}, h("legend", {}, "Show"), Object.entries({ EVICTED: "evictions by quotas", EXPIRED: "expiries", LEDGER_DELETED: "trimmed ledgers", QUARANTINED: "quarantined records" }).map(([kind, text]) =>
    h("label", { class: "row" }, h("input", { type: "checkbox", checked: chosen.has(kind), onchange: (event) => { if (event.target.checked) chosen.add(kind); else chosen.delete(kind); rows.load(); } }), text))));
  return ["Evictions and expiries", [tools, rows], [rows]];
}

const KIND = { acked: "good", "acked out of order": "good", expired: "warn", evicted: "bad", skipped: "warn" };

const lifeOf = (life) => h("article", {}, h("h2", {}, `${short(life.topic)}, ${life.position || `sequence id ${life.sequence_id} of ${life.producer}`}: ${life.text}`),
  sampled(life), life.events.length ? [h("h3", {}, "What happened"), h("ol", { class: "life" }, life.events.slice(0, 200).map((event) => h("li", {}, time(event.clock), event.subscription ? h("b", {}, `${event.subscription}: `) : null, event.text)))] : null,
  life.events.length > 200 ? h("p", { class: "note" }, `${count(life.events.length - 200)} more: magnetar explain lists all.`) : null,
  life.subscriptions.length ? table("What became of it", [["subscription", (row) => row.subscription, "text"], ["outcome", (row) => h("span", { class: `badge ${KIND[row.outcome] || ""}` }, row.outcome), "text"], ["why", (row) => row.text, "text"]], life.subscriptions) : null);

// A button or a form whose answer takes a while.
function answering(area, button, load, draw) {
  return async (event) => {
    event?.preventDefault();
    button.disabled = true;
    show(area, h("p", { class: "note" }, "Looking …"));
    try {
      show(area, draw(await load()));
    } catch (error) {
      failed(area, error);
    }
    button.disabled = false;
  };
}

function message(topic) {
  const area = h("div", { role: "status" });
  const input = (name, text, extra) => h("label", {}, text, h("input", { name, autocomplete: "off", ...extra }));
  const button = h("button", { class: "primary" }, "Explain");
  const form = h("form", { "aria-label": "Find a message" }, input("topic", "Topic", { required: true, class: "wide", value: topic || "", placeholder: "tenant/namespace/topic" }),
    input("position", "Position", { placeholder: "LEDGER:ENTRY", size: 12, pattern: "[0-9]+:[0-9]+" }),
    input("producer", "or producer", { size: 16 }), input("sequence_id", "and sequence id", { inputmode: "numeric", pattern: "[0-9]+", size: 10 }), button);
  form.addEventListener("submit", answering(area, button,
    () => ask("explain", { about: "message", ...Object.fromEntries(new FormData(form)) }), (lives) => lives.map(lifeOf)));
  return ["Find a message", [h("p", { class: "note" }, "By its position, or by its producer and sequence id: when it came, to whom it was sent, and what became of it for each subscription."), form, area], []];
}

const value = (found) => (typeof found === "object" && found !== null ? JSON.stringify(found) : String(found));
const policyTable = (caption, rows) => table(caption, [["policy", (row) => row.policy, "text"], ["value", (row) => value(row.value), "text"], ["set by", (row) => row.level, "text"]], rows);

function policies() {
  const state = { about: "policies", search: "" };
  const area = h("div", {}, h("p", { class: "note" }, "Looking …"));
  const load = answering(area, { disabled: false }, () => ask("explain", state), (found) => [
    found.rows.map((each) => h("section", {}, h("h2", {}, each.namespace), each.policies.length ? policyTable(`Set by ${each.namespace}`, each.policies) : h("p", { class: "note" }, "It sets none."))),
    h("p", { class: "note" }, found.total > found.rows.length ? `${count(found.total - found.rows.length)} more: search for a name.` : plural(found.total, "namespace"))]);
  const input = h("input", { type: "search", autocomplete: "off" });
  const form = h("form", { role: "search", onsubmit: (event) => { state.search = input.value; load(event); } }, h("label", {}, "Namespace contains", input), h("button", {}, "Search"));
  load();
  return ["Policies", [h("p", { class: "note" }, "What namespaces set. A topic's page shows the policies in force there, and the level that sets each."), form, area], []];
}

function batches() {
  const rows = part(async () => {
    const found = await ask("batches");
    if (!found.length) return h("p", { class: "note" }, "How long micro-batches took is not kept here.");
    const phases = [...new Set(found.flatMap((each) => Object.keys(each.phases || {})))].filter((name) => name !== "triggerExecution");
    return [h("div", { class: "plots" }, batchPlot(found)), table("The last micro-batches, newest first", [["batch", (row) => count(row.batch)], ["began (UTC)", (row) => time(row.time), "when"],
      ["seconds", (row) => (row.seconds === null ? "" : row.seconds.toFixed(2))], ["records", (row) => count(row.records)],
      ...phases.map((name) => [name, (row) => (row.phases?.[name] === undefined ? "" : row.phases[name].toFixed(2))])], found.slice(-50).reverse())];
  });
  return ["Micro-batches", [rows], [rows]];
}

const sampled = (found) => (found.sampled ? h("p", { class: "note" }, "Sampled: the number, sizes and times of the entries are right to the mirror's interval, but none whose producer is magnetar-mirror is a message of the cluster.") : null);

function delivery(found) {
  const held = [...found.verdicts].sort((one, other) => other.blocks - one.blocks);
  return h("article", {}, h("h3", {}, `${found.subscription} (${found.type}): ${found.state}`), sampled(found),
    h("p", {}, `Backlog ${count(found.backlog)} entries: ${count(found.in_flight)} in flight, ${count(found.to_redeliver)} to redeliver, ${count(found.delayed)} delayed, ${count(found.unread)} not read yet. Mark-delete position ${found.mark_delete}, read position ${found.read_position}, last entry ${found.last_confirmed}.`),
    held.length ? table(`What decides for ${found.subscription}`, [["", (row) => h("span", { class: `badge ${row.blocks ? "bad" : "good"}` }, row.blocks ? "holds back" : "ok"), "text"], ["decider", (row) => (row.consumer ? `${row.decider} (${row.consumer})` : row.decider), "text"], ["why", (row) => (row.until ? `${row.text}, until ${utc(row.until)}` : row.text), "text"]], held) : null);
}

const check = (found) => h("p", {}, found.unchecked ? `Not checked: ${found.unchecked}` : found.next_check ? ["Next check at ", time(found.next_check), "."] : "Not checked: its interval is 0.");

const quota = (found) => [sampled(found), check(found), h("p", {}, found.slowest ? `The slowest cursor is ${found.slowest}, mark-delete position ${found.mark_delete}.` : "No durable subscription has a backlog."),
  table("Backlog quotas", [["quota", (row) => row.type, "text"], ["state", (row) => row.state, "text"], ["used", (row) => count(row.used)], ["limit", (row) => count(row.limit)], ["policy", (row) => `${row.policy} (${row.level})`, "text"], ["why", (row) => row.text, "text"]], found.quotas),
  found.evicts.map((each) => h("p", { class: "warn" }, `The next check evicts ${count(each.entries)} entries of ${each.subscription}, from ${each.before} to ${each.after}.`)),
  found.disconnects.length ? h("p", { class: "warn" }, `The next check closes the producers ${found.disconnects.join(", ")}.`) : null];

const retention = (found) => [sampled(found), h("p", {}, `${plural(found.ledgers.length, "ledger")}, ${size(found.size)}. Retention: ${found.minutes < 0 ? "unlimited" : `${found.minutes} min`}, ${found.megabytes < 0 ? "unlimited" : `${found.megabytes} MB`} (${found.level}).`), check(found),
  table("Ledgers", [["ledger", (row) => count(row.ledger)], ["entries", (row) => count(row.entries)], ["size", (row) => size(row.size)], ["reason", (row) => row.reason, "text"], ["why", (row) => row.text, "text"], ["", (row) => (found.deletes.includes(row.ledger) ? "the next check deletes it" : ""), "text"]], found.ledgers.slice(0, 200))];

const ttl = (found) => (found.ttl <= 0 ? h("p", {}, `Message TTL is off (messageTTL is 0, ${found.level}).`) : [sampled(found), h("p", {}, `messageTTL: ${count(found.ttl)} s (${found.level}).`), check(found),
  table("What TTL expires next", [["subscription", (row) => row.subscription, "text"], ["state", (row) => row.state, "text"], ["why", (row) => row.text, "text"], ["oldest entry", (row) => row.position || "", "text"], ["published (UTC)", (row) => (row.published === null ? "" : time(row.published)), "when"],
    ["expires", (row) => (row.expires ? entries(row.expires.entries) : "")], ["at (UTC)", (row) => (row.expires ? time(row.expires.at) : ""), "when"]], found.subscriptions.slice(0, 200)), found.unknown.map((each) => h("p", { class: "note" }, `Not known: ${each}`)), h("p", { class: "note" }, "All of that unless a command comes before.")]);

const inactive = ([topic, subs]) => [sampled(topic), h("h3", {}, "The topic"),
  topic.state === "off" ? h("p", {}, `It is never deleted for inactivity: ${topic.text}.`) : [h("p", {}, `${topic.state}: ${topic.text}. ${topic.mode}, after ${count(topic.seconds)} s (${topic.level}).`), check(topic),
    topic.deletes_at === null ? null : h("p", { class: "warn" }, "Deleted at ", time(topic.deletes_at), ", unless a command comes before.")],
  h("h3", {}, "Its subscriptions"), h("p", {}, subs.minutes <= 0 ? `subscriptionExpirationTime is 0 (${subs.level}): no durable subscription is deleted.` : `subscriptionExpirationTime: ${plural(subs.minutes, "minute")} (${subs.level}).`),
  subs.minutes > 0 || subs.subscriptions.some((each) => each.due !== null) ? table("Inactive subscriptions", [["subscription", (row) => row.subscription, "text"], ["state", (row) => row.state, "text"], ["why", (row) => row.text, "text"], ["last used (UTC)", (row) => (row.last_active === null ? "" : time(row.last_active)), "when"], ["deleted (UTC)", (row) => (row.deletes_at === null ? "" : time(row.deletes_at)), "when"]], subs.subscriptions.slice(0, 200)) : null];

const idChanges = (what, changes) => h("p", { class: changes.length ? "warn" : "" }, changes.length ? `${what} changes the last sequence ids of ${changes.slice(0, 20).map((each) => `${each.producer} (${each.before ?? "none"} → ${each.after ?? "none"})`).join(", ")}${changes.length > 20 ? ` and ${count(changes.length - 20)} more` : ""}.` : `${what} forgets nothing that is stored.`);

const deduplication = ([found, absent]) => [sampled(found), h("h3", {}, "Snapshots"),
  found.state === "off" ? h("p", {}, `Deduplication is off${found.wanted ? ", and on with the next load" : ""} (${found.level}).`) : [h("p", {}, `${found.status}${found.wanted ? "" : `, and off with the next load (${found.level})`}. The last snapshot has ${plural(found.producers, "producer")}, up to ${found.position}. A load reads ${entries(found.entries)} after it.`), check(found),
    h("p", {}, `Next snapshot: ${found.state} (${found.text})`, found.snapshot_at === null ? "" : [", taken at ", time(found.snapshot_at)], `, or after ${entries(found.entries_left)}.`), idChanges("An unload", found.unload), idChanges("A crash", found.crash)],
  h("h3", {}, "Producers that it forgets"), absent.producers.length ? [check(absent), table("Absent producers", [["producer", (row) => row.producer, "text"], ["state", (row) => row.state, "text"], ["last sequence id", (row) => (row.sequence_id === null ? "" : count(row.sequence_id))], ["since (UTC)", (row) => (row.since === null ? "" : time(row.since)), "when"], ["forgotten (UTC)", (row) => (row.forgotten_at === null ? "" : time(row.forgotten_at)), "when"]], absent.producers.slice(0, 200))] : h("p", { class: "note" }, "None.")];

function topicPage(name) {
  const state = { topic: name, page: 0 };
  const rows = part(async () => {
    const found = await ask("topic", state);
    return [cards([["backlog, entries", count(found.backlog)], ["backlog size", size(found.backlogSize)], ["storage", size(found.storage)], ["in, messages/s", rate(found.rateIn)], ["out, messages/s", rate(found.rateOut)], ["producers", count(found.producers)], ["messages published", count(found.messagesIn)], ["duplicates", count(found.duplicates)], ["oldest unacknowledged", span(found.oldest)], ["ingress partition", String(found.partition)]]),
      found.quotas.length ? quotaTable(found.quotas) : null,
      h("h2", {}, "Subscriptions"), found.total ? subscriptionTable(found.rows, false) : h("p", { class: "note" }, "None."), pager(state, found.total, () => rows.load())];
  });
  const plots = part(async () => { const found = historyPlots(await ask("history", { topic: name })); return found.length ? h("div", { class: "plots" }, found) : h("p", { class: "note" }, "Samples are kept of the topics that store most. This one is not among them, or it is new."); });
  const lost = latestOf(`The latest of ${short(name)}`, () => ({ topic: name, most: 20 }));
  const area = h("div", { role: "status" });
  const asking = (text, about, draw) => { const button = h("button", { type: "button" }, text); button.addEventListener("click", answering(area, button, () => ask("explain", { about, topic: name }), draw)); return button; };
  const tools = h("div", { class: "tools" }, asking("Why do subscriptions get nothing?", "delivery", (all) => (all.length ? all.map(delivery) : h("p", { class: "note" }, "It has no subscriptions."))),
    asking("Why has no quota evicted?", "quota", quota), asking("Why are its ledgers still there?", "retention", retention),
    asking("What does TTL expire next?", "ttl", ttl), asking("Is it deleted if nobody uses it?", "inactive", inactive), asking("What does deduplication forget?", "deduplication", deduplication), asking("Policies in force", "policies", (found) => policyTable("Policies in force", found)),
    h("a", { href: `#/message/${encodeURIComponent(name)}` }, "Find a message of it"));
  return [short(name), [rows, plots, h("section", {}, h("h2", {}, "Ask"), tools, area), h("section", {}, h("h2", {}, "Lost and trimmed, newest first"), lost)], [rows, plots, lost]];
}

const PAGES = { "": overview, topics, subscriptions, losses, message, twin, policies, batches, topic: topicPage };

// -- moving about

function open(focus) {
  const [, page = "", argument] = location.hash.split("/");
  let name;
  try { name = argument === undefined ? undefined : decodeURIComponent(argument); } catch { name = argument; }
  const [title, body, parts] = (PAGES[page] || overview)(name);
  document.title = `${title} · Magnetar`;
  for (const each of document.querySelectorAll("nav a")) {
    if (each.getAttribute("href") === `#/${page === "topic" ? "topics" : page}`) {
      each.setAttribute("aria-current", "page");
      each.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a narrow screen the list is scrolled
    } else each.removeAttribute("aria-current");
  }
  main.replaceChildren(h("h1", {}, title), ...body.flat(9));
  refresh = () => Promise.all(parts.map((each) => each.load()));
  refresh();
  if (focus) { main.focus(); scrollTo(0, 0); }
}

async function tick() {
  clearTimeout(timer);
  try {
    const { status } = await askOverview();
    changes = status.changes;
    pause.hidden = !changes;
    const batch = status.batch === undefined || status.batch === null ? "" : `, micro-batch ${count(status.batch)}`;
    const kind = { run: "query on", query: "folders of a query", replay: "replay" }[status.kind];
    document.getElementById("status").replaceChildren(`${kind} ${status.name}: `, h("b", { class: status.state === "stopped" ? "bad" : "" }, status.state), `${batch}${status.time ? `, ${utc(status.time)} UTC` : ""}`);
  } catch (error) {
    document.getElementById("status").replaceChildren(h("span", { class: "error" }, error.message));
  }
  timer = setTimeout(again, EVERY_MS);
}

async function again() {
  if (changes && !document.hidden && pause.getAttribute("aria-pressed") === "false") await Promise.all([tick(), refresh()]);
  else timer = setTimeout(again, EVERY_MS);
}

pause.addEventListener("click", () => {
  const paused = pause.getAttribute("aria-pressed") === "false";
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Paused" : "Pause";
});
addEventListener("hashchange", () => { if (location.hash.startsWith("#/") || !location.hash) open(true); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
open(false);
tick();
