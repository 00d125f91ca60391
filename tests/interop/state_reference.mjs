// Drives the reference state package: node state_reference.mjs URL.
// Prints one JSON line with what it saw; the test judges it.
import { DurableStream, stream } from "@durable-streams/client"
import { MaterializedState, createStateSchema, isChangeEvent } from "@durable-streams/state"

const base = process.argv[2]
const any = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const schema = createStateSchema({ users: { schema: any, type: "user", primaryKey: "id" } })

const ours = await stream({ url: `${base}/v1/stream/ours`, offset: "-1", live: false })
const state = new MaterializedState()
for (const event of await ours.json()) if (isChangeEvent(event)) state.apply(event)

const url = `${base}/v1/stream/theirs`
const handle = await DurableStream.create({ url, contentType: "application/json" })
for (const event of [
  schema.users.insert({ value: { id: "1", name: "Al" }, headers: { txid: "t1" } }),
  schema.users.upsert({ value: { id: "2", name: "Bo" } }),
  schema.users.update({ value: { id: "1", name: "Cy" }, oldValue: { id: "1", name: "Al" } }),
  schema.users.delete({ key: "2" }),
])
  await handle.append(JSON.stringify(event))
console.log(JSON.stringify(Object.fromEntries(state.getType("user"))))
process.exit(0)
