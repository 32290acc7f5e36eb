"use strict";
// Draws the trace in #data. Whatever comes from there is set as text, never as markup.
(() => {
  const began = performance.now();
  const data = JSON.parse(document.getElementById("data").textContent);
  const [PARENT, TOKEN, P, Q, ACCEPTANCE, CHANCE, UNIFORM, FLAGS, SIZE] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
  const PARTS = ["draft", "target", "verify", "other"];
  const CLASSES = ["draft", "targets", "verify", "other"];
  const MEANINGS = {
    "token": "Acceptance is min(1, q / p); the coin falls with it.",
    "recursive": "Acceptance is min(1, R / p), R being q less what refused siblings used up; the coin falls with it.",
    "point-mass": "Acceptance is q less what refused siblings used up; the coin falls with it.",
    "block": "Acceptance is the chance, given the draft, that at least this much of it is kept; the coin decides whether " +
      "it is kept up to here, given that no more is.",
    "traversal": "Acceptance is the chance, given the draft, that this token or something below it is kept; the coin is " +
      "thrown when all below was refused.",
    "coupled": "The target's token was drawn and compared: 1 if this is the one. No coin is thrown.",
    "typical": "A lossy rule: 1 if the token is likely enough. No coin is thrown.",
  };
  const STRIP = 100; // rounds that are listed together
  const MOST_BINS = 240;
  const ROW = 30, COLUMN = 98, BOX = 84, TALL = 22;

  const at = (id) => document.getElementById(id);
  const add = (parent, name, text, ...classes) => {
    const child = document.createElement(name);
    if (text !== undefined) child.textContent = text;
    if (classes.length) child.classList.add(...classes);
    return parent.appendChild(child);
  };
  const draw = (parent, name, facts, ...classes) => {
    const child = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(facts)) child.setAttribute(key, value);
    if (classes.length) child.classList.add(...classes);
    return parent.appendChild(child);
  };
  const percent = (share) => share < 0 ? "-" : `${Math.round(100 * share)} %`;
  const shown = (value) => value < 0 ? "-" : String(value);
  const ms = (micros) => `${(micros / 1000).toFixed(1)} ms`;
  const sum = (numbers) => numbers.reduce((all, each) => all + each, 0);
  const colour = (origin) => origin < 0 ? "target" : `c${origin % 6}`;
  const inALine = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣") || "▯";
  const cut = (text, most) => [...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text;

  // ---- a round as an object; nodes are numbered, the next token is the node after the last

  const opened = (list, number) => {
    const [rule, origin, micros, flat, pieces, next, fault] = list;
    const nodes = [];
    for (let i = 0; i < flat.length; i += SIZE) {
      const [parent, token, p, q, acceptance, chance, uniform, flags] = flat.slice(i, i + SIZE);
      const coin = flags & 2 ? { chance, uniform, fell: Boolean(flags & 4) } : null;
      const state = flags & 1 ? "accepted" : coin || acceptance >= 0 ? "refused" : "unseen";
      nodes.push({ parent, token, p, q, acceptance, coin, state, origin, depth: parent < 0 ? 1 : nodes[parent].depth + 1 });
    }
    const path = nodes.flatMap((node, i) => node.state === "accepted" ? [i] : []);
    const drafted = nodes.length;
    if (next.length) {
      const parent = path.length ? path[path.length - 1] : -1;
      path.push(nodes.length);
      nodes.push({ parent, token: next[0], q: next[1], p: -1, acceptance: -1, coin: null, state: "next", origin: -1, depth: path.length });
    }
    return { number, rule: data.rules[rule], micros, nodes, path, drafted, pieces, fault };
  };

  // ---- the token that is looked at

  let text, tokens = [], chosen = -1;

  const coinWords = ({ chance, uniform, fell }) => {
    const drawn = uniform < 0 ? "" : `${shown(uniform)} ${fell ? "<" : "≥"} ${shown(chance)}: `;
    return drawn + (fell ? "fell for it" : "fell against it") + (uniform < 0 ? ` (chance ${shown(chance)})` : "");
  };

  const describe = (round, number) => {
    const node = round.nodes[number], box = at("detail");
    box.replaceChildren();
    const heading = add(box, "p", undefined, "token");
    add(heading, "span", inALine(data.words[node.token] ?? ""), colour(node.origin), ...(node.state === "accepted" ? ["drafted"] : []));
    const facts = add(box, "dl");
    const fact = (name, value) => { add(facts, "dt", name); add(facts, "dd", value); };
    const states = { accepted: "accepted", refused: "refused", unseen: "the rule did not come to it" };
    fact("token", `${node.token}, round ${round.number}, depth ${node.depth}`);
    fact("origin", node.origin < 0 ? "the target's own next token" : `${data.origins[node.origin]}: ${states[node.state]}`);
    fact("q, target", shown(node.q));
    if (node.origin >= 0) {
      fact("p, draft", node.p < 0 ? "chosen, not drawn" : shown(node.p));
      fact("acceptance", shown(node.acceptance));
      fact("coin", node.coin ? coinWords(node.coin) : "none thrown");
    }
    fact("rule", round.rule || "none");
    fact("time", `${ms(sum(round.micros))}: ` + PARTS.map((part, i) => `${part} ${(round.micros[i] / 1000).toFixed(1)}`).join(", "));
    if (round.fault) fact("fault", round.fault);
    add(box, "div", undefined, "tree").appendChild(treeOf(round, number));
    if (MEANINGS[round.rule]) add(box, "p", MEANINGS[round.rule], "why");
  };

  const choose = (index, scroll) => {
    const list = at("tokens");
    for (const marked of list.querySelectorAll(".same, .at")) marked.classList.remove("same", "at");
    chosen = Math.max(0, Math.min(index, tokens.length - 1));
    const here = tokens[chosen];
    if (!here) return;
    for (let i = here.first; i < tokens.length && tokens[i].round === here.round; i++) tokens[i].span.classList.add("same");
    here.span.classList.add("at");
    list.setAttribute("aria-activedescendant", here.span.id);
    if (scroll) here.span.scrollIntoView({ block: "nearest" });
    describe(roundOf(here.round), here.node);
  };

  const cache = new Map();
  const roundOf = (number) => {
    if (!cache.has(number)) cache.set(number, opened(text.rounds[number], number));
    return cache.get(number);
  };

  const writeTokens = () => {
    const list = at("tokens"), all = document.createDocumentFragment();
    tokens = [];
    text.rounds.forEach((packed, number) => {
      const round = roundOf(number), first = tokens.length;
      round.pieces.forEach((piece, i) => {
        const node = round.path[i], { origin, token } = round.nodes[node];
        const span = add(all, "span", piece.replace(/\n/g, "⏎\n") || (data.words[token] ? "" : "▯"));
        span.classList.add(colour(origin));
        if (origin >= 0) span.classList.add("drafted");
        span.id = `t${tokens.length}`;
        span.setAttribute("role", "option");
        span.dataset.i = tokens.length;
        tokens.push({ round: number, node, span, first });
      });
    });
    list.replaceChildren(all);
    const pointed = (event) => {
      const index = event.target.dataset?.i;
      if (index !== undefined && Number(index) !== chosen) choose(Number(index));
    };
    list.onpointerover = list.onclick = pointed;
  };

  const move = (event) => {
    const here = tokens[chosen] ?? { first: 0, round: -1 };
    let end = here.first;
    while (end < tokens.length && tokens[end].round === here.round) end++;
    const before = tokens[here.first - 1];
    const places = {
      ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: tokens.length - 1,
      ArrowDown: end, ArrowUp: before ? before.first : 0,
    };
    if (event.key in places) {
      event.preventDefault();
      choose(places[event.key], true);
    }
  };

  // ---- trees

  const placed = (nodes) => {
    const rows = new Array(nodes.length), children = nodes.map(() => []), top = [];
    nodes.forEach((node, i) => (node.parent < 0 ? top : children[node.parent]).push(i));
    let row = -1;
    const stack = top.slice().reverse().map((i, place, list) => [i, place === list.length - 1]);
    while (stack.length) {
      const [i, goesOn] = stack.pop();
      if (!goesOn || row < 0) row++;
      rows[i] = row;
      const below = children[i];
      for (let k = below.length - 1; k >= 0; k--) stack.push([below[k], k === 0]);
    }
    return rows;
  };

  const treeOf = (round, current) => {
    const rows = placed(round.nodes), deepest = Math.max(0, ...round.nodes.map((node) => node.depth));
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const left = (node) => 20 + (node.depth - 1) * COLUMN, middle = (i) => 3 + TALL / 2 + rows[i] * ROW;
    svg.setAttribute("width", 24 + deepest * COLUMN);
    svg.setAttribute("height", 8 + (Math.max(0, ...rows) + 1) * ROW - (ROW - TALL));
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", `Draft of round ${round.number}; arrow keys go from token to token`);
    const kept = new Set(round.path);
    round.nodes.forEach((node, i) => {
      const x = node.parent < 0 ? 10 : left(round.nodes[node.parent]) + BOX, y = node.parent < 0 ? 3 + TALL / 2 : middle(node.parent);
      const bend = (x + left(node)) / 2;
      draw(svg, "path", { d: `M${x} ${y}C${bend} ${y} ${bend} ${middle(i)} ${left(node)} ${middle(i)}` }, ...(kept.has(i) ? ["kept"] : []));
    });
    draw(svg, "circle", { cx: 8, cy: 3 + TALL / 2, r: 4 }, "root");
    round.nodes.forEach((node, i) => {
      const word = inALine(data.words[node.token] ?? ""), y = middle(i);
      const group = draw(svg, "g", { tabindex: i ? -1 : 0, role: "img", "aria-label": `${word}: ${node.state}` }, node.state, colour(node.origin));
      if (i === current) group.classList.add("at");
      draw(group, "rect", { x: left(node), y: y - TALL / 2, width: BOX, height: TALL });
      if (node.state === "next") draw(group, "rect", { x: left(node) + 3, y: y - TALL / 2 + 3, width: BOX - 6, height: TALL - 6 }, "inner");
      draw(group, "text", { x: left(node) + BOX / 2, y }).textContent = cut(word, 10);
      if (current === undefined) group.onpointerenter = group.onclick = group.onfocus = () => describe(round, i);
    });
    svg.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const groups = [...svg.querySelectorAll("g")], next = groups[groups.indexOf(document.activeElement) + step];
      if (step && next) {
        event.preventDefault();
        next.focus();
      }
    };
    return svg;
  };

  const drawn = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      drawn.unobserve(target);
      target.replaceChildren(treeOf(roundOf(Number(target.dataset.round))));
    }
  }, { rootMargin: "400px" });

  const listRound = (parent, number) => {
    const round = roundOf(number), box = add(parent, "div", undefined, "round");
    const line = add(box, "p");
    add(line, "b", `Round ${number}`);
    const accepted = round.nodes.filter((node) => node.state === "accepted").length;
    line.append(`: ${round.drafted} drafted, ${accepted} accepted; ${ms(sum(round.micros))}` +
      (round.rule ? `; ${round.rule}` : "") + (round.fault ? `; ${round.fault}` : ""));
    const tree = add(box, "div", undefined, "tree");
    tree.dataset.round = number;
    const rows = placed(round.nodes);
    tree.style.minHeight = `${14 + (Math.max(0, ...rows) + 1) * ROW}px`;
    drawn.observe(tree);
  };

  const listPlain = (parent, first, last) => {
    const line = add(add(parent, "div", undefined, "round"), "p");
    add(line, "b", first === last ? `Round ${first}` : `Rounds ${first} to ${last}`);
    line.append(": nothing drafted: ");
    for (let number = first; number <= last; number++) {
      for (const piece of roundOf(number).pieces) add(line, "span", inALine(piece), "plain");
    }
  };

  const listStrip = (strip, start, end) => {
    for (let number = start; number < end; number++) {
      const first = number;
      while (number < end && !roundOf(number).drafted && !roundOf(number).fault) number++;
      if (number > first) listPlain(strip, first, number - 1);
      if (number < end) listRound(strip, number);
    }
  };

  const listRounds = () => {
    const all = at("rounds");
    all.replaceChildren();
    for (let start = 0; start < text.rounds.length; start += STRIP) {
      const end = Math.min(start + STRIP, text.rounds.length);
      const strip = add(all, "details");
      add(strip, "summary", `Rounds ${start} to ${end - 1}`);
      strip.ontoggle = () => {
        if (strip.open && strip.children.length === 1) listStrip(strip, start, end);
      };
      strip.open = start === 0;
    }
  };

  // ---- time

  const drawTimeline = () => {
    const box = at("timeline"), rounds = text.rounds.map((packed) => packed[2]);
    const wide = Math.ceil(rounds.length / MOST_BINS) || 1, bins = [];
    for (let start = 0; start < rounds.length; start += wide) {
      const own = rounds.slice(start, start + wide);
      bins.push({ start, end: start + own.length - 1, parts: PARTS.map((_, i) => sum(own.map((each) => each[i])) / own.length) });
    }
    const most = Math.max(1, ...bins.map(({ parts }) => sum(parts)));
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${Math.max(bins.length, 12) * 10} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    const marks = bins.map(({ parts }, place) => {
      let y = 100;
      parts.forEach((part, i) => {
        const height = 100 * part / most;
        y -= height;
        draw(svg, "rect", { x: place * 10, y, width: 9, height }, CLASSES[i]);
      });
      return draw(svg, "rect", { x: place * 10, y: 0, width: 10, height: 100 }, "bin");
    });
    let place = -1;
    const show = (next) => {
      place = Math.max(0, Math.min(next, bins.length - 1));
      const { start, end, parts } = bins[place];
      const words = `Round${end > start ? `s ${start} to ${end}, on average` : ` ${start}`}: ${ms(sum(parts))}; ` +
        PARTS.map((part, i) => `${part} ${ms(parts[i])}`).join(", ");
      marks.forEach((mark, i) => mark.classList.toggle("at", i === place));
      at("when").textContent = words;
      box.setAttribute("aria-valuetext", words);
      box.setAttribute("aria-valuenow", place);
    };
    box.setAttribute("aria-valuemin", 0);
    box.setAttribute("aria-valuemax", Math.max(0, bins.length - 1));
    marks.forEach((mark, i) => {
      mark.onpointerenter = () => show(i);
      mark.onclick = () => choose(tokens.findIndex((token) => token.round >= bins[i].start), true);
    });
    box.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step && bins.length) {
        event.preventDefault();
        show(place + step);
      }
    };
    box.replaceChildren(svg);
    const whole = PARTS.map((_, i) => sum(rounds.map((each) => each[i]))), key = at("parts");
    key.replaceChildren();
    PARTS.forEach((part, i) => {
      const entry = add(key, "span");
      add(entry, "i", undefined, CLASSES[i]);
      entry.append(`${part} ${percent(whole[i] / (sum(whole) || 1))}`);
    });
    at("when").textContent = `Each column is ${wide > 1 ? `the mean of ${wide} rounds` : "a round"}; the tallest has ${ms(most)}.`;
  };

  // ---- acceptance, facts, legend

  const drawPositions = () => {
    const box = at("positions");
    box.replaceChildren();
    text.positions.forEach(([conditional, cumulative], i) => {
      const line = add(box, "div", undefined, "place");
      add(line, "span", i + 1);
      const svg = draw(line, "svg", { role: "img", "aria-label": `position ${i + 1}: ${percent(conditional)}, of all drafts ${percent(cumulative)}` });
      draw(svg, "rect", { width: "100%", height: "100%" }, "whole");
      draw(svg, "rect", { width: `${100 * Math.max(0, conditional)}%`, height: "100%" }, "bar");
      draw(svg, "line", { x1: `${100 * cumulative}%`, x2: `${100 * cumulative}%`, y1: 0, y2: "100%" }, "reach");
      add(line, "span", `${percent(conditional)}, ${percent(cumulative)}`);
    });
    if (!text.positions.length) add(box, "p", "Nothing was drafted.", "hint");
  };

  const writeFacts = () => {
    const facts = at("facts"), legend = at("legend");
    facts.replaceChildren();
    for (const [name, value] of Object.entries(text.facts)) {
      const entry = add(facts, "div");
      add(entry, "dt", name);
      add(entry, "dd", value ?? "-");
    }
    legend.replaceChildren();
    data.origins.forEach((origin, i) => {
      add(legend, "span", `${origin}, accepted`, "drafted", colour(i));
      legend.append(" ");
    });
    add(legend, "span", "the target's own", "target");
    at("prompt").textContent = text.prompt;
  };

  const open = (number) => {
    text = data.texts[number];
    cache.clear();
    chosen = -1;
    at("detail").replaceChildren();
    add(at("detail"), "p", "Point at a token, tap it, or go there with the arrow keys.", "hint");
    writeFacts();
    writeTokens();
    drawTimeline();
    drawPositions();
    listRounds();
  };

  at("tokens").onkeydown = move;
  at("tokens").onfocus = () => { if (chosen < 0 && tokens.length) choose(0, true); };
  data.texts.forEach(({ label }, number) => { add(at("text"), "option", label).value = number; });
  at("pick").hidden = data.texts.length < 2;
  at("text").onchange = (event) => open(Number(event.target.value));
  if (data.texts.length) open(0);
  document.documentElement.dataset.milliseconds = (performance.now() - began).toFixed(1);
})();
