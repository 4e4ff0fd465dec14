// Colours come from the style sheet, so that light and dark have one source.

const GPU_CLASSES = ["compute", "compute", "communication", "memcpy"];
let palette = {};
const readPalette = () => {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  palette = {
    ink: read("--ink"), muted: read("--muted"), line: read("--line"), card: read("--card"),
    band: read("--band"), focus: read("--focus"), finding: read("--finding"),
    step: read("--step"), call: read("--host-call"),
    gpu: GPU_CLASSES.map((name) => read(`--c-${name}`)),
    idle: report.causes.map((name) => read(`--c-${name}`)),
    path: report.path.map((name) => read(`--c-${name}`)),
    host: Array.from({ length: 8 }, (_, i) => read(`--host-${i}`)),
  };
};

const colourOf = (lane, i) => {
  const code = lane.code[i];
  switch (lane.kind) {
    case "gpu": return palette.gpu[code] || palette.gpu[0];
    case "idle": return palette.idle[code] || palette.muted;
    case "path": return palette.path[code] || palette.muted;
    case "finding": return palette.finding;
    case "step": return palette.step;
    default:
      if (lane.calls.has(code)) return palette.call;
      if (code === lane.annotation) return palette.step;
      return palette.host[(lane.name[i] * 2654435761 >>> 0) % palette.host.length];
  }
};
// Dark or white text, by how light the colour is: white on anything lighter is hard to read.
const inks = new Map();
const inkOn = (colour) => {
  let ink = inks.get(colour);
  if (ink) return ink;
  const part = (at) => {
    const value = parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const light = 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  inks.set(colour, ink = light > 0.22 ? "#15191f" : "#ffffff");
  return ink;
};
