"use strict";
// Sliders, choices of rows, and live updates. Everything shown comes from the document or from its own server, and texts are set as
// texts. Markup is only taken from the server of the page, which escapes all data.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const format = new Intl.NumberFormat("en-US");
  const show = (value) => String(Number(value.toPrecision(10)));

  // ------------------------------------------------------------------ thresholds
  const kept = (data, index) => {
    let sum = 0;
    const [from, to] = data.side === "minimum" ? [index + 1, data.alone.length] : [0, index + 1];
    for (let place = from; place < to; place++) sum += data.alone[place];
    return sum;
  };
  const moved = new Map();
  const slide = (input) => {
    const data = JSON.parse(input.dataset.slider);
    const value = data.edges[Number(input.value)];
    const box = input.closest(".slider"), chart = input.closest(".score").querySelector(".chart");
    const now = kept(data, Number(input.value)), change = now - data.kept, same = value === data.value;
    box.querySelector("label b").textContent = show(value);
    input.setAttribute("aria-valuetext", show(value));
    const share = data.rows ? ` (${(100 * now / data.rows).toFixed(1)} %)` : "";
    box.querySelector("output").textContent = same
      ? `${format.format(data.kept)} of ${format.format(data.rows)} rows, as now`
      : `${format.format(now)} of ${format.format(data.rows)} rows${share}: ` +
        (change ? `${format.format(Math.abs(change))} ${change < 0 ? "fewer" : "more"} than now` : "as many as now");
    const command = box.querySelector(".command");
    command.hidden = same;
    command.querySelector("code").textContent = `${data.command} ${data.set}=${show(value)}`.trim();
    let line = chart.querySelector(`[data-for="${input.id}"]`);
    if (!line) {
      line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      line.setAttribute("class", "chosen");
      line.dataset.for = input.id;
      chart.append(line);
    }
    const x = `${(100 * (Number(input.value) + 1) / (data.edges.length + 1)).toFixed(2)}%`;
    for (const [name, to] of [["x1", x], ["x2", x], ["y1", 0], ["y2", chart.querySelector(".drawing").getAttribute("height")]]) line.setAttribute(name, to);
    line.setAttribute("visibility", same ? "hidden" : "visible");
    if (same) moved.delete(input.id); else moved.set(input.id, input.value);
  };

  // ------------------------------------------------------------------ rows
  let choice = null;
  const choose = (fate, reason = null) => {
    choice = { fate, reason };
    let count = 0;
    for (const row of all(".row[data-fate]")) {
      row.hidden = reason !== null ? row.dataset.reason !== reason : fate !== "" && !row.dataset.fate.split(" ").includes(fate);
      if (!row.hidden) count++;
    }
    for (const button of all("button[data-fate]")) button.setAttribute("aria-pressed", String(reason === null && button.dataset.fate === fate));
    const link = reason !== null ? all("a[data-reason]").find((each) => each.dataset.reason === reason) : null;
    const said = document.getElementById("rows-shown");
    if (said) said.textContent = link ? `${count === 1 ? "1 row" : `${count} rows`} dropped because of: ${link.textContent}` : "";
  };
  const first = () => {
    const reason = location.hash.match(/^#(reason-[0-9a-f]{10})$/);
    if (reason) return jump(reason[1], false);
    const fates = all("button[data-fate]").map((button) => button.dataset.fate);
    if (fates.length) choose(["borderline", "dropped", "kept", "failed"].find((fate) => fates.includes(fate)) ?? "");
  };
  const jump = (reason, focus = true) => {
    choose("", reason);
    const target = document.getElementById("rows");
    if (!target) return;
    target.scrollIntoView();
    if (focus) target.focus({ preventScroll: true });
  };

  // ------------------------------------------------------------------ events, delegated, so that new content needs no set-up
  document.addEventListener("input", (event) => { if (event.target.matches("[data-slider]")) slide(event.target); });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button"), link = event.target.closest("a[data-reason]");
    if (link) {
      event.preventDefault();
      history.replaceState(null, "", link.getAttribute("href"));
      jump(link.dataset.reason);
    } else if (button && button.dataset.fate !== undefined) {
      choose(button.dataset.fate);
    } else if (button && button.dataset.copy !== undefined) {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code); // no clipboard in pages from files: the user copies what is selected
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    }
  });
  const watch = "IntersectionObserver" in window && new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of all(".sections a")) {
        if (link.getAttribute("href") === `#${entry.target.id}`) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  const observe = () => { if (watch) { watch.disconnect(); all("main > section").forEach((each) => watch.observe(each)); } };
  first();
  observe();

  // ------------------------------------------------------------------ live updates
  const address = document.body.dataset.live;
  if (address === undefined) return;
  const versions = {};
  const status = document.getElementById("connection");
  let failed = 0;
  const say = (words, lost) => {
    if (!status || status.textContent === words) return;
    status.textContent = words;
    status.classList.toggle("lost", lost);
  };
  const replace = (name, markup) => {
    const old = document.getElementById(name);
    const active = document.activeElement, inside = old && old.contains(active);
    const open = old ? all("details", old).map((each) => each.open) : [];
    const holder = document.createElement("template");
    holder.innerHTML = markup;
    const fresh = holder.content.firstElementChild;
    if (!fresh) { if (old) old.remove(); return; }
    if (old) old.replaceWith(fresh);
    else {
      const order = (document.body.dataset.order || "").split(" ");
      const after = all("main > *").find((each) => order.indexOf(each.id) > order.indexOf(name));
      document.querySelector("main").insertBefore(fresh, after ?? null);
    }
    all("details", fresh).forEach((each, place) => { if (open[place]) each.open = true; });
    for (const [id, value] of moved) {
      const slider = document.getElementById(id);
      if (slider && fresh.contains(slider)) { slider.value = value; slide(slider); }
    }
    if (inside) {
      const same = active.id ? document.getElementById(active.id) : all(active.tagName, fresh).find((each) => each.textContent === active.textContent);
      (same ?? fresh).focus({ preventScroll: true });
    }
    if (name === "rows") { if (choice) choose(choice.fate, choice.reason); else first(); }
  };
  const update = async () => {
    let wait = 2000;
    try {
      const have = Object.entries(versions).filter(([name]) => name !== "nav").map((pair) => pair.join(":")).join(",");
      const answer = await fetch(`${address}?have=${encodeURIComponent(have)}`, { headers: { "x-tamis": "1" }, cache: "no-store", credentials: "same-origin" });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const news = await answer.json();
      for (const [name, part] of Object.entries(news.parts)) { versions[name] = part.version; replace(name, part.markup); }
      if (news.nav !== undefined && news.nav !== versions.nav) {
        versions.nav = news.nav;
        const list = document.querySelector(".sections ul");
        if (list) list.innerHTML = news.nav;
      }
      if (Object.keys(news.parts).length) observe();
      if (news.title) document.title = news.title;
      failed = 0;
      say(news.live ? "live" : "up to date", false);
      wait = news.live ? 1500 : 4000;
    } catch {
      failed++;
      say("connection lost, trying again", true);
      wait = Math.min(15000, 500 * 2 ** Math.min(failed, 5));
    }
    setTimeout(update, document.hidden ? Math.max(wait, 10000) : wait);
  };
  update();
})();
