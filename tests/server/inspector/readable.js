// What is wrong on the page: words too close to the colour of their ground (under 4.5:1), and controls without a name.
() => {
  const problems = [];
  const box = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (text) => {
    box.clearRect(0, 0, 1, 1);
    box.fillStyle = text;
    box.fillRect(0, 0, 1, 1);
    return [...box.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, below) => top.slice(0, 3).map((part, n) => part * top[3] / 255 + below[n] * (1 - top[3] / 255)).concat(255);
  const ground = (element) => {
    if (!element) return [255, 255, 255, 255];
    const own = colour(getComputedStyle(element).backgroundColor);
    return own[3] === 255 ? own : over(own, ground(element.parentElement));
  };
  const light = (rgb) => rgb.slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, n) => sum + part * [0.2126, 0.7152, 0.0722][n], 0);
  const seen = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const words = [...element.childNodes].filter((node) => node.nodeType === 3 && node.textContent.trim());
    if (!words.length || element.closest("svg") || !element.checkVisibility()) continue;
    const below = ground(element);
    const [a, b] = [light(over(colour(getComputedStyle(element).color), below)), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const where = `${element.tagName.toLowerCase()}.${element.className}`;
    if (ratio < 4.5 && !seen.has(where)) {
      seen.add(where);
      problems.push(`${where} has ${ratio.toFixed(2)}:1`);
    }
  }
  for (const control of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea")) {
    const name = control.getAttribute("aria-label") || control.title || control.textContent.trim()
      || [...(control.labels ?? [])].map((label) => label.textContent.trim()).join("");
    if (!name) problems.push(`${control.outerHTML.slice(0, 80)} has no name`);
  }
  return problems;
}
