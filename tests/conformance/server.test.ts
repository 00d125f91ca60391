/**
 * The public conformance suite, against the server at CONFORMANCE_URL.
 * Its own command line finds no tests under the newest vitest, so it is called from here.
 */
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_URL
if (!baseUrl) throw new Error("Set CONFORMANCE_URL to the server's address.")

runConformanceTests({
  baseUrl,
  longPollTimeoutMs: Number(process.env.CONFORMANCE_LONG_POLL_MS ?? 20_000),
  subscriptions: process.env.CONFORMANCE_SUBSCRIPTIONS === "1",
})
