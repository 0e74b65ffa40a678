// The Node driver's part of test_real_clients.py: `node workload.mjs URI NAME STOP_FILE`. Prints what it did as JSON.
import { existsSync } from 'node:fs';
import { MongoClient } from 'mongodb';

const [uri, name, stopFile] = process.argv.slice(2);
const client = new MongoClient(uri, { writeConcern: { w: 'majority' } });
const tally = { name, rounds: 0, counts: {}, inserted: [], moved: 0, errors: [] };
const database = client.db('clients');
const [documents, counters, accounts, moves] = ['documents', 'counters', 'accounts', 'moves'].map(
  (collection) => database.collection(collection),
);

async function step(what, action) {
  try {
    await action();
    tally.counts[what] = (tally.counts[what] ?? 0) + 1;
    return true;
  } catch (error) {
    tally.errors.push(`${new Date().toISOString()} round ${tally.rounds}, ${what}: ${error}`);
    return false;
  }
}

async function move(session, round) {
  await accounts.updateOne({ _id: `${name}-from` }, { $inc: { sum: -1 } }, { session, upsert: true });
  await accounts.updateOne({ _id: `${name}-to` }, { $inc: { sum: 1 } }, { session, upsert: true });
  await moves.insertOne({ _id: `${name}-${round}` }, { session });
}

await client.connect();
for (let round = 0; !existsSync(stopFile); round++, tally.rounds = round) {
  const increment = (field) => ({ $inc: { [field]: 1 } });
  const id = `${name}-${round}`;
  if (await step('insert', () => documents.insertOne({ _id: id }))) tally.inserted.push(id);
  await step('update', () => counters.updateOne({ _id: name }, increment('update'), { upsert: true }));
  await step('find', () => counters.findOneAndUpdate({ _id: name }, increment('find')));
  const bulk = [
    { updateOne: { filter: { _id: name }, update: increment('bulk') } },
    { insertOne: { document: { _id: `${id}-bulk` } } },
  ];
  if (await step('bulk', () => counters.bulkWrite(bulk.slice(0, 1)))) {
    if (await step('bulkInsert', () => documents.bulkWrite(bulk.slice(1)))) tally.inserted.push(`${id}-bulk`);
  }
  const moving = () => client.withSession((session) => session.withTransaction(() => move(session, round)));
  if (await step('transaction', moving)) tally.moved += 1;
}
await client.close();
console.log(JSON.stringify(tally));
