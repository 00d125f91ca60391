// Drives a server with the official TypeScript client: node official_client.mjs URL.
// Prints one JSON line with what it saw; the test judges it.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"

const base = process.argv[2]
const url = `${base}/v1/stream/interop/typescript`

const handle = await DurableStream.create({ url, contentType: "application/json" })
await handle.append(JSON.stringify({ n: 1 }))
const producer = new IdempotentProducer(handle, "interop", { lingerMs: 1 })
producer.append(JSON.stringify({ n: 2 }))
producer.append(JSON.stringify({ n: 3 }))
await producer.flush()

const caughtUp = await (await stream({ url, offset: "-1", live: false })).json()

async function follow(live) {
  const seen = []
  const response = await stream({ url, offset: "-1", live })
  const done = new Promise((resolve) => {
    response.subscribeJson(async (batch) => {
      seen.push(...batch.items)
      if (seen.some((item) => item.last)) resolve()
    })
  })
  return { seen, done, stop: () => response.cancel() }
}

const followers = { sse: await follow("sse"), longPoll: await follow("long-poll") }
await new Promise((resolve) => setTimeout(resolve, 200))
await handle.append(JSON.stringify({ n: 4, last: true }))
await Promise.all([followers.sse.done, followers.longPoll.done])
followers.sse.stop()
followers.longPoll.stop()

const head = await handle.head()
await producer.close()
await DurableStream.delete({ url })
let gone = false
try {
  await stream({ url, offset: "-1", live: false })
} catch {
  gone = true
}
console.log(
  JSON.stringify({
    caughtUp,
    sse: followers.sse.seen,
    longPoll: followers.longPoll.seen,
    contentType: head.contentType,
    gone,
  }),
)
process.exit(0)
