// From the unpacked bytes of a rank to lanes of typed columns (report/timeline_data.py).

// Integers lie in byte planes, least significant plane first.
const readColumn = (bytes, base, count, [offset, planes]) => {
  const values = new Float64Array(count);
  let scale = 1;
  for (let plane = 0; plane < planes; plane++, scale *= 256) {
    const from = base + offset + plane * count;
    for (let i = 0; i < count; i++) values[i] += bytes[from + i] * scale;
  }
  return values;
};

const readLane = (bytes, base, described) => {
  const lane = { ...described };
  for (const [key, place] of Object.entries(described.columns)) {
    lane[key] = readColumn(bytes, base, described.count, place);
  }
  let now = 0;
  for (let i = 0; i < described.count; i++) lane.start[i] = now += lane.start[i];
  return lane;
};

// One list of events per line of a lane, by start, so that a redraw only visits what is visible.
const splitRows = (lane) => {
  const counts = [];
  for (const row of lane.row) counts[row] = (counts[row] || 0) + 1;
  const rows = Array.from(counts, (n) => ({
    lane, count: n || 0, start: new Float64Array(n || 0), end: new Float64Array(n || 0),
    reach: new Float64Array(n || 0), index: new Uint32Array(n || 0),
  }));
  const filled = new Uint32Array(rows.length);
  for (let i = 0; i < lane.count; i++) {
    const row = rows[lane.row[i]], at = filled[lane.row[i]]++;
    row.start[at] = lane.start[i];
    row.end[at] = lane.start[i] + lane.dur[i];
    row.reach[at] = at ? Math.max(row.reach[at - 1], row.end[at]) : row.end[at];
    row.index[at] = i;
  }
  return rows;
};

const decodeRank = async (number) => {
  const bytes = await unpack(byId(`timeline-${number}`).textContent);
  const headerLength = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerLength)));
  const lanes = header.lanes.map((entry) => readLane(bytes, 4 + headerLength, entry));
  for (const lane of lanes) lane.rows = splitRows(lane);
  return { ...header, lanes: lanes.filter((lane) => lane.count > 0) };
};
