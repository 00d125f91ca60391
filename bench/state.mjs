// The reference's MaterializedState over a file of batches: node state.mjs FILE. Prints JSON.
import { closeSync, openSync, readFileSync, readSync } from "node:fs"
import { createRequire } from "node:module"
import { pathToFileURL } from "node:url"

const [file, modules] = process.argv.slice(2)
const require = createRequire(pathToFileURL(`${modules}/`))
const { MaterializedState, isChangeEvent } = require("@durable-streams/state")
const lengths = JSON.parse(readFileSync(`${file}.lengths`))
const descriptor = openSync(file)
const state = new MaterializedState()
let events = 0
let nanoseconds = 0n
for (const length of lengths) {
  const bytes = Buffer.allocUnsafe(length)
  readSync(descriptor, bytes, 0, length)
  const before = process.hrtime.bigint()
  const batch = JSON.parse(bytes.toString())
  for (const event of batch) if (isChangeEvent(event)) state.apply(event)
  nanoseconds += process.hrtime.bigint() - before
  events += batch.length
}
closeSync(descriptor)
const rows = state.types.reduce((sum, type) => sum + state.getType(type).size, 0)
const rss = process.resourceUsage().maxRSS * 1024
console.log(JSON.stringify({ rate: events / (Number(nanoseconds) / 1e9), rss, rows }))
