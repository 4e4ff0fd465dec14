// From the base64 text of compressed data to bytes.

const unpack = async (text) => {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

const unpackJson = async (id) => JSON.parse(new TextDecoder().decode(await unpack(byId(id).textContent)));
