// The explorer: texts, lenses and edits go to the server; what it answers is drawn by grid.js. The view is kept in the
// address, after the #, which no server sees.
import { add, drawGrid, percent } from "./grid.js";

const find = (selector, within = document) => within.querySelector(selector);
const views = [];
let lms = [];

async function ask(path, body) {
  let answer;
  try {
    answer = await fetch(path, body && {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
  } catch {
    throw new Error("the server does not answer: is lre explore still running?");
  }
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function makeView() {
  const root = find("#view").content.cloneNode(true).firstElementChild;
  find("#views").append(root);
  const form = find(".ask", root), edit = find(".edit", root), shown = find(".shown", root);
  const fields = form.elements, changes = edit.elements, number = views.length;
  let drawn = null, state = null, token = null, edited = null;
  lms.forEach(({ model }, i) => add(fields.lm, "option", model, { value: i }));
  fields.lm.parentElement.hidden = lms.length < 2;
  for (const name of ["subjects", "targets"]) {
    find(`.${name}`, root).id = `${name}${number}`;
    changes[name.slice(0, -1)].setAttribute("list", `${name}${number}`);
  }

  // Offers the lenses and layers of the LM that is chosen.
  function offer(index) {
    const { lenses, layers } = lms[(fields.lm.value = lms[index] ? index : 0)];
    const chosen = fields.lens.value;
    fields.lens.replaceChildren(new Option("that of the text", ""), ...lenses.map((name) => new Option(name)));
    changes.layer.replaceChildren(...layers.map((layer) => new Option(layer)));
    if (lenses.includes(chosen)) fields.lens.value = chosen;
    delete edit.dataset.relation;
    token = null;
  }
  offer(0);

  // Asks, and shows the answer of the last request of its kind alone.
  const turns = { read: 0, edit: 0 };
  async function work(status, path, body, done) {
    const mine = ++turns[path], last = () => mine === turns[path];
    status.classList.remove("error");
    status.textContent = "…";
    root.classList.add("busy");
    try {
      const found = await ask(path, body);
      if (last()) done(found);
    } catch (error) {
      if (last()) {
        status.classList.add("error");
        status.textContent = error.message;
        drop[path]();
      }
    } finally {
      if (last()) root.classList.remove("busy");
    }
  }

  // What an error leaves of the answer before: nothing.
  const drop = {
    read() {
      shown.replaceChildren();
      drawn = null;
      edit.hidden = true;
    },
    edit: () => find(".answers", edit).replaceChildren(),
  };

  function forget() {
    edited = null;
    find(".answers", edit).replaceChildren();
    find(".status", edit).textContent = "";
  }

  function draw(found) {
    const focused = drawn?.table.contains(document.activeElement);
    state = found;
    fields.lens.options[0].textContent = fields.lens.value ? "that of the text" : `that of the text: ${found.lens}`;
    const said = [["asks", "asks about"], ["mentions", "mentions subjects of"]].map(([how, words]) => {
      const names = found.found.filter((one) => one[1] === how).map(([name]) => name);
      return names.length ? `${words} ${names.slice(0, 5).join(", ")}${names.length > 5 ? ", \u2026" : ""}` : "";
    }).filter(Boolean).join("; ");
    find(".status", root).textContent = `The text ${said || "asks about no relation and mentions no subject of one"}.`;
    if (drawn?.fits(found.grid)) {
      drawn.update(found.grid);
    } else {
      drawn = drawGrid(shown, found.grid, {
        pin(word, id) {
          token = id ?? null;
          fields.pin.value = word === null ? "" : word.replace(/^␣/, "");
          look();
        },
        actions: () => (state.edit ? [[(y) => `edit at layer ${state.grid.layers[y]}`, editAt]] : []),
      });
      if (focused) find("td[tabindex='0']", shown).focus({ preventScroll: true });
    }
    edit.hidden = !found.edit;
    if (!found.edit) return;
    if (edited !== null && edited !== fields.text.value) forget();
    if (edit.dataset.relation !== found.edit.relation) {
      edit.dataset.relation = found.edit.relation;
      find("h3", edit).textContent = `Edit through the LRE of ${found.edit.relation}`;
      changes.layer.value = found.edit.layer;
      changes.rank.value = found.edit.rank ?? "";
      changes.target.value = "";
      forget();
    }
    const fill = (list, names) => list.replaceChildren(...names.map((name) => new Option("", name)));
    const subjects = [...new Set(found.subjects.map(([name]) => name))];
    fill(find(".subjects", root), subjects);
    fill(find(".targets", root), found.edit.targets);
    if (!fields.text.value.includes(changes.subject.value) || !changes.subject.value) changes.subject.value = subjects[0] ?? "";
    if (!changes.target.value) changes.target.value = found.edit.targets.find((name) => !fields.text.value.includes(name)) ?? "";
  }

  function look() {
    const text = fields.text.value;
    if (!text.trim()) return;
    const body = { lm: Number(fields.lm.value), text, lens: fields.lens.value, pin: fields.pin.value, quiet: fields.quiet.checked, ...(token === null ? {} : { token }) };
    return work(find(".status", root), "read", body, (found) => {
      draw(found);
      remember();
    });
  }

  function change() {
    const layer = changes.layer.value === "emb" ? "emb" : Number(changes.layer.value);
    const body = {
      lm: Number(fields.lm.value), text: fields.text.value, relation: state.edit.relation, subject: changes.subject.value,
      target: changes.target.value, layer, rank: Number(changes.rank.value) || null,
    };
    const status = find(".status", edit);
    return work(status, "edit", body, (found) => {
      status.textContent = `${found.subject} → ${found.target}, layer ${found.layer}, rank ${found.rank}`;
      const answers = find(".answers", edit);
      answers.replaceChildren();
      for (const [title, { answers: likely, text }] of [[`before: ${found.subject}`, found.before], [`after: ${found.target}`, found.after]]) {
        const part = add(answers, "div");
        add(part, "h4", title, { dir: "auto" });
        const list = add(part, "ol");
        for (const [answer, value] of likely) {
          const line = add(list, "li");
          add(line, "bdi", answer || "␣");
          add(line, "meter", "", { value, "aria-hidden": true });
          add(line, "span", percent(value));
        }
        const said = add(part, "p", "… ");
        add(add(said, "q"), "bdi", text);
      }
      edited = body.text;
      remember();
    });
  }

  function editAt(y, x) {
    changes.layer.value = state.grid.layers[y];
    changes.subject.value = state.subjects.find(([, token]) => token === x)?.[0] ?? changes.subject.value;
    edit.scrollIntoView({ block: "nearest" });
    change();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    look();
  });
  fields.text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  fields.lens.addEventListener("change", look);
  fields.quiet.addEventListener("change", look);
  fields.lm.addEventListener("change", () => {
    offer(fields.lm.value);
    look();
  });
  fields.pin.addEventListener("input", () => (token = null));
  edit.addEventListener("submit", (event) => {
    event.preventDefault();
    change();
  });

  return {
    root,
    state: () => ({
      lm: fields.lm.value === "0" ? "" : fields.lm.value,
      text: fields.text.value, lens: fields.lens.value, pin: fields.pin.value, token: token ?? "", quiet: fields.quiet.checked ? "1" : "",
      ...(edited !== null && !edit.hidden ? { subject: changes.subject.value, target: changes.target.value, layer: changes.layer.value, rank: changes.rank.value } : {}),
    }),
    async restore(given) {
      fields.text.value = given.text;
      offer(Number(given.lm) || 0);
      if (lms[fields.lm.value].lenses.includes(given.lens)) fields.lens.value = given.lens;
      fields.pin.value = given.pin ?? "";
      fields.quiet.checked = given.quiet === "1";
      token = /^\d+$/.test(given.token ?? "") ? Number(given.token) : null;
      await look();
      if (!given.target || !state?.edit) return;
      for (const name of ["subject", "target", "rank"]) if (given[name]) changes[name].value = given[name];
      if (lms[fields.lm.value].layers.includes(given.layer)) changes.layer.value = given.layer;
      await change();
    },
  };
}

function remember() {
  const parts = new URLSearchParams();
  views.forEach((view, i) => Object.entries(view.state()).forEach(([key, value]) => value !== "" && parts.set(i ? `${key}${i + 1}` : key, value)));
  history.replaceState(null, "", `#${parts}`);
}

function remembered() {
  const given = [{}, {}];
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) given[key.endsWith("2") ? 1 : 0][key.replace(/2$/, "")] = value;
  return given.filter(({ text }) => text);
}

function compare(on) {
  if (on && views.length < 2) views.push(makeView());
  if (!on && views.length > 1) views.pop().root.remove();
  find("#compare").setAttribute("aria-pressed", on);
}

find("#compare").addEventListener("click", () => {
  compare(views.length < 2);
  if (views.length > 1) views[1].restore(views[0].state());
  else remember();
});

find("#link").addEventListener("click", async () => {
  remember();
  const copied = await navigator.clipboard.writeText(location.href).then(() => true, () => false);
  find("#said").textContent = copied ? "Copied." : "The address of this page is the link.";
});

async function start() {
  if (!lms.length) {
    find("#said").textContent = "A first text is read …";
    lms = await ask("about");
    find("#said").textContent = "";
  }
  find("#models").textContent = lms.map(({ model }) => model).join(", ");
  const given = remembered();
  if (!views.length) views.push(makeView());
  compare(given.length > 1);
  for (const [i, one] of (given.length ? given : [{ text: lms[0].example, quiet: "1" }]).entries()) await views[i].restore(one);
}

addEventListener("hashchange", start); // by a link, or by hand; the page's own changes send none
start().catch((error) => (find("#said").textContent = error.message));
