// The peer of the comparison: npm's @durable-streams/server, in memory or on files.
//
//   node bench/peer.mjs --port 4437 [--data-dir DIR]
//
// HEADWATER_BENCH_NODE_MODULES names another node_modules folder than the repository's own.
import { join } from "node:path"
import { parseArgs } from "node:util"
import { pathToFileURL } from "node:url"

const { values } = parseArgs({
  options: { port: { type: "string" }, "data-dir": { type: "string" } },
})

const elsewhere = process.env.HEADWATER_BENCH_NODE_MODULES
// NODE_PATH does not reach ES modules, so another folder is imported by its file URL.
const source = elsewhere
  ? pathToFileURL(join(elsewhere, "@durable-streams", "server", "dist", "index.js")).href
  : "@durable-streams/server"
const { DurableStreamTestServer } = await import(source)

const server = new DurableStreamTestServer({
  host: "127.0.0.1",
  port: Number(values.port ?? 4437),
  dataDir: values["data-dir"],
})
await server.start()
console.log("listening")
