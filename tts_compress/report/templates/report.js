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

  // Listening: one voice at a time; a button of the same text goes on where the other one is.
  const players = [...document.querySelectorAll("audio")];
  for (const row of rows) {
    const own = [...row.querySelectorAll("audio")];
    if (own.length === 0) continue;
    const seek = document.createElement("input");
    const time = document.createElement("span");
    seek.type = "range";
    seek.step = 0.01;
    seek.max = row.dataset.seconds;
    seek.value = 0;
    seek.setAttribute("aria-label", `Position, text ${row.dataset.order}, seed ${row.dataset.seed}`);
    let now = own[0];
    const show = () => {
      seek.value = now.currentTime;
      time.textContent = `${now.currentTime.toFixed(1)} of ${Number(seek.max).toFixed(1)} s`;
      seek.setAttribute("aria-valuetext", time.textContent);
    };
    for (const player of own) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "play";
      button.setAttribute("aria-label", player.getAttribute("aria-label"));
      button.textContent = player.dataset.name;
      const state = () => {
        button.setAttribute("aria-pressed", String(!player.paused));
        if (player === now) show();
      };
      button.addEventListener("click", () => {
        if (!player.paused) return player.pause();
        const at = now.ended ? 0 : now.currentTime;
        for (const other of players) other.pause();
        now = player;
        player.currentTime = at < Number(player.dataset.seconds) ? at : 0;
        player.play().catch(() => {});
      });
      for (const event of ["play", "pause", "ended", "timeupdate"]) player.addEventListener(event, state);
      player.addEventListener("error", () => {
        const note = document.createElement("p");
        note.className = "absent";
        note.setAttribute("role", "status");
        note.textContent = player.src.startsWith("data:")
          ? "this browser does not play Opus in Ogg; Safari does from 18.4 on"
          : `no audio file ${decodeURIComponent(player.getAttribute("src"))} beside the report`;
        button.after(note);
      });
      player.closest(".said").querySelector(".who").replaceChildren(button);
      player.removeAttribute("controls");
      state();
    }
    seek.addEventListener("input", () => {
      now.currentTime = seek.value;
      show();
    });
    const line = document.createElement("div");
    line.className = "position";
    line.append(seek, time);
    row.cells[0].append(line);
  }
})();
