// graphile-worker in a folder of its own: `node graphile_side.js DSN install|fill|work|work-one-by-one NUMBER PAYLOAD`.
const { createInterface } = require("node:readline");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");

const TOGETHER = 1000;
const CONCURRENCY = 8;
const BATCHED = { concurrentJobs: CONCURRENCY, maxPoolSize: CONCURRENCY + 2, localQueue: { size: 200 }, completeJobBatchDelay: 0 };
const ONE_BY_ONE = { concurrentJobs: CONCURRENCY, maxPoolSize: CONCURRENCY + 2 };
const logger = new Logger(() => () => {});

async function fill(connectionString, number, payload) {
  const utils = await makeWorkerUtils({ connectionString, logger });
  const began = performance.now();
  for (let first = 0; first < number; first += TOGETHER) {
    const length = Math.min(TOGETHER, number - first);
    await utils.addJobs(
      Array.from({ length }, (_, index) => ({ identifier: "work", payload: { number: first + index, payload } })),
    );
  }
  console.log(JSON.stringify({ seconds: (performance.now() - began) / 1000 }));
  await utils.release();
}

async function work(connectionString, preset) {
  const done = new Map();
  const taskList = { work: async ({ number }) => { done.set(number, (done.get(number) ?? 0) + 1); } };
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  console.log("ready");
  await lines.next();
  const runner = await run({ connectionString, taskList, logger, noHandleSignals: true, preset: { worker: preset } });
  await lines.next();
  await runner.stop();
  const jobs = [...done.values()].reduce((sum, each) => sum + each, 0);
  console.log(JSON.stringify({ jobs, distinct: done.size }));
  process.exit(0);
}

async function main(connectionString, order, number, payload) {
  if (order === "install") {
    const utils = await makeWorkerUtils({ connectionString, logger });
    await utils.migrate();
    await utils.release();
  } else if (order === "fill") {
    await fill(connectionString, Number(number), payload);
  } else {
    await work(connectionString, order === "work" ? BATCHED : ONE_BY_ONE);
  }
}

main(...process.argv.slice(2));
