// A small agent on the official TypeScript SDK: `tool` asks for permission, `slow N MS` streams, anything else is echoed.
// It cannot load a session: whoever restores one has to prime a new one. PEER_MODULES names the node_modules folder.
import { createRequire } from "node:module";
import { randomUUID } from "node:crypto";
import { Readable, Writable } from "node:stream";
import { setTimeout as wait } from "node:timers/promises";

const acp = await import(createRequire(`${process.env.PEER_MODULES}/x.js`).resolve("@agentclientprotocol/sdk"));
const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const options = [
  { optionId: "always", name: "Always", kind: "allow_always" },
  { optionId: "once", name: "Once", kind: "allow_once" },
  { optionId: "no", name: "No", kind: "reject_once" },
];
const stopped = new Set();
const text = (words) => ({ type: "text", text: words });

async function tool(client, sessionId, say) {
  const toolCallId = randomUUID();
  const plan = (status) => say({ sessionUpdate: "plan", entries: [{ content: "touch it", priority: "high", status }] });
  await say({ sessionUpdate: "agent_thought_chunk", content: text("thinking about it") });
  await plan("in_progress");
  await say({ sessionUpdate: "tool_call", toolCallId, title: "touch", kind: "edit", status: "pending", rawInput: { n: 1.0 } });
  const { outcome } = await client.request("session/request_permission", { sessionId, toolCall: { toolCallId }, options });
  const allowed = outcome.outcome === "selected" && outcome.optionId !== "no";
  const image = { type: "image", data: PIXEL, mimeType: "image/png" };
  const shown = [text("touched"), image];
  const content = allowed ? shown.map((content) => ({ type: "content", content })) : [];
  await say({ sessionUpdate: "tool_call_update", toolCallId, status: allowed ? "completed" : "failed", content });
  await plan("completed");
  await say({ sessionUpdate: "agent_message_chunk", content: image });
  await say({ sessionUpdate: "agent_message_chunk", content: text(allowed ? "done" : "refused") });
}

async function prompt({ params: { sessionId, prompt }, client }) {
  stopped.delete(sessionId);
  const say = (update) => client.notify("session/update", { sessionId, update });
  const [verb, count, pause] = (prompt.at(-1).text ?? "").split(" ");
  if (verb === "tool") await tool(client, sessionId, say);
  else if (verb === "slow")
    for (let number = 0; number < Number(count); number++) {
      await wait(Number(pause));
      if (stopped.has(sessionId)) return { stopReason: "cancelled" };
      await say({ sessionUpdate: "agent_message_chunk", content: text(`chunk ${number} `) });
    }
  else await say({ sessionUpdate: "agent_message_chunk", content: text(`ts-echo: ${prompt.at(-1).text}`) });
  return { stopReason: "end_turn" };
}

acp
  .agent({ name: "ts-echo" })
  .onRequest("initialize", () => ({ protocolVersion: 1, agentCapabilities: {}, agentInfo: { name: "ts-echo", version: "1" } }))
  .onRequest("session/new", () => ({ sessionId: randomUUID() }))
  .onRequest("session/prompt", prompt)
  .onNotification("session/cancel", ({ params }) => void stopped.add(params.sessionId))
  .connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
