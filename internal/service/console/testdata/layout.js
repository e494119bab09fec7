// The faults of a page's layout, by its own boxes: broken words, clipped text, text outside of its box or the window, and
// text that is hard to read. Its value is a list of texts.
(async () => {
  for (let i = 0; i < 2; i++) await new Promise(done => requestAnimationFrame(done));
  const faults = [], range = document.createRange(), most = 20; // longer words may break
  const where = e => `${e.localName}${e.id && "#" + e.id}${e.className && "." + e.className} “${e.textContent.trim().slice(0, 60)}”`;
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) faults.push(`scrolls: the page is ${wide} wide, the window ${innerWidth}`);
  const numbers = c => c.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = e => {
    for (; e; e = e.parentElement) {
      const c = numbers(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const meant = e => { // it is hidden on purpose, and read aloud
    if (e.closest(".skip, script, option, datalist")) return true;
    for (; e; e = e.parentElement) if (getComputedStyle(e).clipPath !== "none") return true;
    return false;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = texts.nextNode();) {
    const e = node.parentElement;
    if (!node.data.trim() || meant(e) || !e.checkVisibility()) continue;
    for (const word of node.data.matchAll(/[\p{L}\p{N}_’]+/gu)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const boxes = [...range.getClientRects()];
      if (word[0].length <= most && boxes.some(b => Math.abs(b.top - boxes[0].top) > b.height / 2)) {
        faults.push(`broken: ${word[0]} in ${where(e)}`);
      }
      if (!e.closest(".wide") && boxes.some(b => b.right > innerWidth + 1 || b.left < -1)) faults.push(`outside: ${word[0]} in ${where(e)}`);
    }
    if (e.closest("textarea")) continue;
    const a = light(numbers(getComputedStyle(e).color)), b = light(paper(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faults.push(`faint: ${ratio.toFixed(1)} to 1 in ${where(e)}`);
  }
  const boxes = "td, th, button, [role=button], dd, dt, li, p, label, figcaption, summary, caption, h1, h2, h3, article, fieldset";
  for (const e of document.body.querySelectorAll("*")) {
    const s = getComputedStyle(e), hides = /hidden|clip/.test(s.overflowX + s.overflowY);
    if (meant(e) || !e.clientWidth || /^(input|select|textarea|progress|canvas|svg)$/.test(e.localName) || !e.checkVisibility()) continue;
    if (e.scrollWidth > e.clientWidth + 1 && (hides || e.matches(boxes))) faults.push(`clipped: ${e.scrollWidth} in ${e.clientWidth}: ${where(e)}`);
    else if (hides && e.scrollHeight > e.clientHeight + 1) faults.push(`clipped: ${e.scrollHeight} high in ${e.clientHeight}: ${where(e)}`);
  }
  return [...new Set(faults)].slice(0, 12);
})()
