"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const test = JSON.parse(element("test").textContent);
  const draw = () => crypto.getRandomValues(new Uint32Array(1))[0];
  const letter = () => "ab"[draw() & 1];
  const session = draw();
  const left = test.pairs.map((pair) => [draw(), pair]).sort((p, q) => p[0] - q[0]).map(([, pair]) => pair);
  const buttons = [...document.querySelectorAll(".play")];
  const answers = [...document.querySelectorAll(".answer")];
  const next = element("next");
  const trials = [];
  let players = {};
  let now, trial, begin, saved;

  const press = (button, on) => button.setAttribute("aria-pressed", String(on));
  const show = () => {
    const unheard = Object.keys(trial.plays).filter((name) => !trial.plays[name]).join(", ").toUpperCase();
    for (const button of answers) {
      button.disabled = unheard !== "";
      press(button, button.value === trial.answer);
    }
    next.disabled = !trial.answer;
    const asked = trial.answer ? "You can change your answer, or go on." : "Is X the same as A or as B?";
    element("hint").textContent = unheard ? `Still to play: ${unheard}.` : asked;
  };
  const stop = () => Object.values(players).forEach((player) => player.pause());
  const play = (name) => {
    const player = players[name];
    if (!player.paused) return stop();
    const at = now && !now.paused ? now.currentTime : 0;
    stop();
    now = player;
    player.currentTime = at < player.duration ? at : 0;
    trial.plays[name] += 1;
    show();
    player.play().catch(() => {
      if (player.error) element("hint").textContent = "This browser does not play FLAC; use another one.";
    });
  };
  const answer = (choice) => {
    if (answers[0].disabled) return;
    trial.answer = choice;
    show();
    next.focus();
  };
  const open = () => {
    stop();
    const { sounds, ...pair } = left.pop();
    trial = { ...pair, reference: letter(), x: letter(), answer: "", plays: { a: 0, b: 0, x: 0 } };
    const [first, second] = sounds.map((sound) => `data:audio/flac;base64,${sound}`);
    const [a, b] = trial.reference === "a" ? [first, second] : [second, first];
    players = { a: new Audio(a), b: new Audio(b), x: new Audio(trial.x === "a" ? a : b) };
    for (const button of buttons) {
      const player = players[button.value];
      press(button, false);
      for (const event of ["play", "pause"]) player.addEventListener(event, () => press(button, !player.paused));
    }
    begin = performance.now();
    element("progress").textContent = `Pair ${trials.length + 1} of ${test.pairs.length}`;
    element("bar").value = trials.length;
    element("progress").focus();
    show();
  };
  const end = () => {
    const listener = element("name").value.trim();
    const results = { format_version: 1, test: test.test, identical: test.identical, listener, session, trials };
    const save = element("save");
    save.href = URL.createObjectURL(new Blob([JSON.stringify(results, null, 1)], { type: "application/json" }));
    save.download = `listening-${test.test}-${listener.replace(/[^\p{L}\p{N}]+/gu, "-") || session}.json`;
    save.addEventListener("click", () => { saved = true; });
    element("trial").hidden = true;
    element("end").hidden = false;
    save.focus();
  };
  element("start").addEventListener("submit", (event) => {
    event.preventDefault();
    element("start").hidden = true;
    element("trial").hidden = false;
    open();
  });
  for (const button of buttons) button.addEventListener("click", () => play(button.value));
  for (const button of answers) button.addEventListener("click", () => answer(button.value));
  next.addEventListener("click", () => {
    trials.push({ ...trial, seconds: Math.round(performance.now() - begin) / 1000 });
    stop();
    (left.length ? open : end)();
  });
  document.addEventListener("keydown", (event) => {
    const key = event.key.toLowerCase();
    if (element("trial").hidden || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
    if (key in players) play(key);
    else if (key === "1" || key === "2") answer("ab"[key - 1]);
  });
  addEventListener("beforeunload", (event) => { if (trials.length && !saved) event.preventDefault(); });
})();
