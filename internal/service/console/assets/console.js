"use strict";
// The page fetches its newer state and takes over what differs. Without this script all
// works by reloading.
(() => {
  const address = document.body.dataset.live;
  if (!address) return;
  const every = 3000, most = 60;
  const said = document.getElementById("said"), lost = document.getElementById("lost");
  const near = new Set();
  const watch = new IntersectionObserver(list => {
    for (const e of list) e.isIntersecting ? near.add(e.target) : near.delete(e.target);
  }, { rootMargin: "200px" });
  document.querySelectorAll("tr[data-job]").forEach(row => watch.observe(row));

  // patch brings a node to what another is, and leaves what somebody works in.
  const patch = (now, then) => {
    if (now.isEqualNode(then)) return;
    const busy = now.contains(document.activeElement);
    if (now.nodeType !== then.nodeType || now.nodeName !== then.nodeName) {
      if (!busy) now.replaceWith(then.cloneNode(true));
      return;
    }
    if (now.nodeType !== Node.ELEMENT_NODE) { now.nodeValue = then.nodeValue; return; }
    for (const a of [...now.attributes]) if (!then.hasAttribute(a.name) && a.name !== "open") now.removeAttribute(a.name);
    for (const a of then.attributes) if (now.getAttribute(a.name) !== a.value) now.setAttribute(a.name, a.value);
    if (now.childNodes.length === then.childNodes.length) {
      const to = [...then.childNodes];
      [...now.childNodes].forEach((child, i) => patch(child, to[i]));
    } else if (!busy) now.replaceChildren(...[...then.childNodes].map(n => n.cloneNode(true)));
  };
  const word = e => e.querySelector(".state")?.textContent;
  const take = page => {
    const told = [];
    for (const row of near) {
      const then = page.querySelector(`tr[data-job="${CSS.escape(row.dataset.job)}"]`);
      if (!then) continue;
      if (word(row) !== word(then)) told.push(row.dataset.job + ": " + word(then));
      patch(row, then);
    }
    for (const id of ["counts", "now", "actions", "facts", "curves", "log", "collections", "workers", "present", "past"]) {
      const now = document.getElementById(id), then = page.getElementById(id);
      if (!now || !then) continue;
      if (id === "now" && word(now) !== word(then)) told.push("now " + word(then));
      patch(now, then);
    }
    const at = document.querySelector("#jobs > caption time"), newer = page.querySelector("#jobs > caption time");
    if (at && newer) patch(at, newer);
    if (told.length) said.textContent = told.length > 3 ? told.length + " jobs changed their state" : told.join(", ");
  };
  const look = async () => {
    try {
      if (document.hidden) return;
      const to = new URL(address, location.href);
      for (const row of [...near].slice(0, most)) to.searchParams.append("n", row.dataset.job);
      const reply = await fetch(to, { headers: { "X-Live": "1" } });
      if (reply.status === 401) { location.reload(); return; }
      lost.hidden = reply.ok;
      if (reply.ok) take(new DOMParser().parseFromString(await reply.text(), "text/html"));
    } catch { lost.hidden = false; } finally { setTimeout(look, every); }
  };
  setTimeout(look, every);
})();
