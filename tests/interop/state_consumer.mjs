// Loads a stream with the reference package's database: node state_consumer.mjs URL.
// Prints the keys that it shows, or the error that stopped it; the test judges it.
import { createStateSchema, createStreamDB } from "@durable-streams/state/db"

const any = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const state = createStateSchema({ users: { schema: any, type: "user", primaryKey: "id" } })
const quiet = () => {}
console.error = console.warn = quiet
const db = createStreamDB({ streamOptions: { url: process.argv[2], contentType: "application/json" }, state })
let seen
try {
  await Promise.race([
    db.preload(),
    new Promise((_, reject) => setTimeout(() => reject(new Error("it never loads")), 5000)),
  ])
  seen = { keys: [...db.collections.users.keys()].sort() }
} catch (error) {
  seen = { error: String(error.message ?? error) }
}
console.log(JSON.stringify(seen))
process.exit(0)
