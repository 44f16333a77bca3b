// A client on the official TypeScript SDK: the same steps and events as py_client.py. PEER_MODULES names node_modules.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";

const acp = await import(createRequire(`${process.env.PEER_MODULES}/x.js`).resolve("@agentclientprotocol/sdk/unstable"));
const setup = JSON.parse(process.argv[2]);
const emit = (event, fields) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);
let policy = "allow_once";
let count = 0;
let atCount = () => {};
const choices = new Map(); // from a toolCallId to what is chosen there

function choice(toolCallId) {
  if (!choices.has(toolCallId)) {
    const made = {};
    made.option = new Promise((resolve) => (made.choose = resolve));
    choices.set(toolCallId, made);
  }
  return choices.get(toolCallId);
}

// every update and question as it came, before the SDK looks at it
const observe = new TransformStream({
  transform(message, controller) {
    if (message.method === "session/request_permission") emit("asked", { id: message.id, params: message.params });
    if (message.method === "$/cancel_request") emit("withdrawn", { id: message.params.requestId });
    if (message.method === "session/update") {
      emit("update", { params: message.params });
      count += 1;
      atCount();
    }
    controller.enqueue(message);
  },
});

// every answer as it leaves
const replies = new TransformStream({
  transform(message, controller) {
    if (message.method === undefined) emit("replied", { id: message.id });
    controller.enqueue(message);
  },
});

function permission({ params }) {
  const chosen = params.options.find(({ kind }) => kind === policy)?.optionId ?? null; // by kind, never by place or id
  emit("permission", { sessionId: params.sessionId, toolCallId: params.toolCall.toolCallId, chosen });
  if (policy === "hold") return new Promise(() => {}); // never answer
  if (policy === "told")
    return choice(params.toolCall.toolCallId).option.then((optionId) => ({ outcome: { outcome: "selected", optionId } }));
  return { outcome: chosen === null ? { outcome: "cancelled" } : { outcome: "selected", optionId: chosen } };
}

function prompt(agent, { sessionId, text, cancelAfter }) {
  count = 0;
  let sent = false;
  atCount = () => {
    if (cancelAfter === undefined || sent || count < cancelAfter) return;
    sent = true;
    agent.notify("session/cancel", { sessionId });
  };
  return agent.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
}

function carryOut(agent, step) {
  const { sessionId, cwd } = step;
  const mcpServers = [];
  const clientInfo = { name: "ts-client", version: "1" };
  switch (step.op) {
    case "initialize":
      return agent.request("initialize", { protocolVersion: 1, clientCapabilities: step.capabilities ?? {}, clientInfo });
    case "authenticate":
      return agent.request("authenticate", { methodId: step.methodId });
    case "new":
      return agent.request("session/new", { cwd, mcpServers });
    case "load":
    case "resume":
      return agent.request(`session/${step.op}`, { sessionId, cwd, mcpServers });
    case "list":
      return agent.request("session/list", cwd === undefined ? {} : { cwd });
    case "close":
      return agent.request("session/close", { sessionId });
    case "set_mode":
      return agent.request("session/set_mode", { sessionId, modeId: step.modeId });
    case "policy":
      policy = step.kind;
      return null;
    case "choose":
      choice(step.toolCallId).choose(step.optionId);
      return null;
    case "cancel":
      return agent.notify("session/cancel", { sessionId });
    case "nonsense":
      return agent.request("_acpd/nonsense", {});
    case "prompt":
      return prompt(agent, step);
    default:
      throw new Error(step.op);
  }
}

async function report(agent, step, number) {
  try {
    emit("result", { step: number, op: step.op, result: (await carryOut(agent, step)) ?? null });
  } catch (error) {
    emit("error", { step: number, code: error.code ?? null, message: String(error.message), data: error.data });
  }
}

const child = spawn(setup.command[0], setup.command.slice(1), { cwd: setup.cwd, env: setup.env, stdio: ["pipe", "pipe", "inherit"] });
const exited = new Promise((resolve) => child.once("exit", (code, signal) => resolve(code ?? signal)));
child.stdin.on("error", () => {}); // EPIPE of a dead agent; the requests fail on their own
const { readable, writable } = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
replies.readable.pipeTo(writable).catch(() => {}); // the same

const running = acp
  .client({ name: "ts-client" })
  .onRequest("session/request_permission", permission)
  .onNotification("session/update", ({ params }) => emit("handled", { sessionId: params.sessionId, kind: params.update.sessionUpdate }))
  .connectWith({ readable: readable.pipeThrough(observe), writable: replies.writable }, async (agent) => {
    let number = 0;
    for await (const line of createInterface({ input: process.stdin })) {
      const step = JSON.parse(line);
      const done = report(agent, step, number);
      if (!step.apart) await done;
      number += 1;
    }
  });
await running.catch((error) => emit("broken", { message: String(error) }));
child.stdin.end();
emit("closed", { code: await exited });
process.exit(0);
