// mongosh's part of test_real_clients.py. URI, name and stop file come from the environment; prints JSON after each round.
const { existsSync } = require('fs');
const name = process.env.CLIENT_NAME;
const tally = { name, rounds: 0, counts: {}, inserted: [], moved: 0, errors: [] };
const database = db.getSiblingDB('clients');
const majority = { writeConcern: { w: 'majority' } };

function step(what, action) {
  try {
    action();
    tally.counts[what] = (tally.counts[what] || 0) + 1;
    return true;
  } catch (error) {
    tally.errors.push(`${new Date().toISOString()} round ${tally.rounds}, ${what}: ${error}`);
    return false;
  }
}

function move(session, round) {
  const there = session.getDatabase('clients');
  there.accounts.updateOne({ _id: `${name}-from` }, { $inc: { sum: -1 } }, { upsert: true });
  there.accounts.updateOne({ _id: `${name}-to` }, { $inc: { sum: 1 } }, { upsert: true });
  there.moves.insertOne({ _id: `${name}-${round}` });
}

while (!existsSync(process.env.CLIENT_STOP)) {
  const id = `${name}-${tally.rounds}`;
  if (step('insert', () => database.documents.insertOne({ _id: id }, majority))) tally.inserted.push(id);
  step('update', () => database.counters.updateOne({ _id: name }, { $inc: { update: 1 } }, { upsert: true, ...majority }));
  step('find', () => database.counters.findOneAndUpdate({ _id: name }, { $inc: { find: 1 } }, majority));
  step('bulk', () => database.counters.bulkWrite([{ updateOne: { filter: { _id: name }, update: { $inc: { bulk: 1 } } } }], majority));
  if (step('bulkInsert', () => database.documents.bulkWrite([{ insertOne: { document: { _id: `${id}-bulk` } } }], majority)))
    tally.inserted.push(`${id}-bulk`);
  const session = db.getMongo().startSession();
  if (step('transaction', () => session.withTransaction(() => move(session, tally.rounds), majority))) tally.moved += 1;
  session.endSession();
  tally.rounds += 1;
  print(JSON.stringify(tally));
}
