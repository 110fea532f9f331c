"use strict";
(() => {
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = [...body.rows].filter((row) => row.dataset.order !== undefined);
  const select = document.getElementById("sort");
  const changed = document.getElementById("changed");
  const count = document.getElementById("count");

  // Sorting. What was not measured comes last, whichever way up.
  const value = (row, key) => {
    const text = row.dataset[key];
    return text === "" || Number.isNaN(Number(text)) ? null : Number(text);
  };
  const compare = (key, sign) => (a, b) => {
    const [x, y] = [value(a, key), value(b, key)];
    if (x !== null && y !== null && x !== y) return sign * (x - y);
    if ((x === null) !== (y === null)) return x === null ? 1 : -1;
    return value(a, "order") - value(b, "order") || value(a, "seed") - value(b, "seed");
  };
  const headers = [...table.tHead.rows[0].cells];
  const sort = (key, direction) => {
    body.append(...rows.sort(compare(key, direction === "ascending" ? 1 : -1)));
    for (const header of headers) {
      if (header.dataset.key === key) header.setAttribute("aria-sort", direction);
      else header.removeAttribute("aria-sort");
    }
    select.value = `${key}:${direction}`; // empty where the list does not have it
  };
  for (const header of headers) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    const first = header.dataset.key === "order" ? "ascending" : "descending";
    const other = { ascending: "descending", descending: "ascending" };
    button.addEventListener("click", () => {
      const now = header.getAttribute("aria-sort");
      sort(header.dataset.key, now ? other[now] : first);
    });
  }
  select.addEventListener("change", () => sort(...select.value.split(":")));

  const filter = () => {
    let shown = 0;
    for (const row of rows) {
      row.hidden = changed.checked && row.dataset.changed === undefined;
      if (!row.hidden) shown += 1;
    }
    count.textContent = `${shown} of ${rows.length} shown`;
  };
  changed.addEventListener("change", filter);
  document.getElementById("tools").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("tools").hidden = false;
  filter();

  // Listening: one voice at a time; "Play both" plays the reference, then the compressed model.
  let sequence = null;
  const stop = () => {
    if (sequence) sequence.button.firstChild.data = "Play both";
    sequence = null;
  };
  const players = [...document.querySelectorAll("audio")];
  // Hundreds of native players make loading and sorting slow; those out of sight can wait.
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      target.querySelector("audio")?.setAttribute("controls", "");
      near.unobserve(target);
    }
  }, { rootMargin: "800px" });
  for (const player of players) near.observe(player.parentElement);
  for (const player of players) {
    player.addEventListener("play", () => {
      if (sequence && !sequence.audio.includes(player)) stop();
      for (const other of players) if (other !== player && !other.paused) other.pause();
    });
    player.addEventListener("error", () => {
      const note = document.createElement("p");
      note.className = "absent";
      note.setAttribute("role", "status");
      note.textContent = `no audio file ${decodeURIComponent(player.getAttribute("src"))} beside the report`;
      player.replaceWith(note);
      stop();
    });
  }
  for (const button of document.querySelectorAll("button.both")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const audio = [...button.closest("tr").querySelectorAll("audio")];
      const again = sequence && sequence.button === button;
      stop();
      for (const player of audio) {
        player.pause();
        player.onended = null;
      }
      if (again || audio.length !== 2) return;
      sequence = { button, audio };
      button.firstChild.data = "Stop";
      for (const player of audio) player.currentTime = 0;
      audio[0].onended = () => {
        audio[0].onended = null;
        if (sequence && sequence.button === button) audio[1].play().catch(stop);
      };
      audio[1].onended = stop;
      audio[0].play().catch(stop);
    });
  }
})();
