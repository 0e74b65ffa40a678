// What users of the Node driver do, thing by thing: `node things.mjs URI`. Prints {"ok": N, "failed": [[name, why]]}.
import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { GridFSBucket, Long, MongoClient, ObjectId, Timestamp } from 'mongodb';

const client = new MongoClient(process.argv[2], { writeConcern: { w: 'majority' } });
const db = client.db('things');
const c = db.collection('c');
const session = (work, options) => client.withSession(options ?? {}, work);
const refusedWith = (code) => (error) => error.code === code;

const things = {
  connect: async () => assert.equal((await client.connect()).constructor.name, 'MongoClient'),
  ping: async () => assert.equal((await db.command({ ping: 1 })).ok, 1),
  'drop a database': async () => assert.equal(await db.dropDatabase(), true),
  insertOne: async () => assert.equal((await c.insertOne({ _id: 1, n: 1, tags: ['a'] })).insertedId, 1),
  insertMany: async () => assert.equal((await c.insertMany([2, 3, 4].map((n) => ({ _id: n, n })))).insertedCount, 3),
  'insert with an ObjectId': async () => assert.ok((await c.insertOne({ n: -1 })).insertedId instanceof ObjectId),
  'duplicate key': () => assert.rejects(c.insertOne({ _id: 1 }), refusedWith(11000)),
  findOne: async () => assert.equal((await c.findOne({ _id: 2 })).n, 2),
  'find with sort, skip, limit and projection': async () => {
    const found = await c.find({ n: { $gt: 0 } }).sort({ n: -1 }).skip(1).limit(2).project({ n: 1, _id: 0 }).toArray();
    assert.deepEqual(found, [{ n: 3 }, { n: 2 }]);
  },
  'a cursor in batches': async () => {
    const seen = [];
    for await (const one of c.find().batchSize(2)) seen.push(one._id);
    assert.equal(seen.length, 5);
  },
  'a cursor as a stream': async () => assert.equal((await c.find().stream().toArray()).length, 5),
  'close a cursor': async () => {
    const cursor = c.find().batchSize(1);
    await cursor.next();
    await cursor.close();
    assert.equal(cursor.closed, true);
  },
  updateOne: async () => assert.equal((await c.updateOne({ _id: 1 }, { $inc: { n: 10 } })).modifiedCount, 1),
  updateMany: async () => assert.equal((await c.updateMany({ n: { $gte: 3 } }, { $set: { big: true } })).matchedCount, 3),
  upsert: async () => assert.equal((await c.updateOne({ _id: 9 }, { $set: { n: 9 } }, { upsert: true })).upsertedId, 9),
  arrayFilters: async () => {
    await c.updateOne({ _id: 1 }, { $set: { 'tags.$[t]': 'b' } }, { arrayFilters: [{ t: 'a' }] });
    assert.deepEqual((await c.findOne({ _id: 1 })).tags, ['b']);
  },
  replaceOne: async () => assert.equal((await c.replaceOne({ _id: 9 }, { n: 99 })).modifiedCount, 1),
  findOneAndUpdate: async () => {
    const after = await c.findOneAndUpdate({ _id: 2 }, { $inc: { n: 1 } }, { returnDocument: 'after' });
    assert.equal(after.n, 3);
  },
  findOneAndReplace: async () => assert.equal((await c.findOneAndReplace({ _id: 2 }, { n: 2 })).n, 3),
  findOneAndDelete: async () => assert.equal((await c.findOneAndDelete({ _id: 9 })).n, 99),
  deleteOne: async () => assert.equal((await c.deleteOne({ n: -1 })).deletedCount, 1),
  deleteMany: async () => assert.equal((await c.deleteMany({ _id: { $in: [4] } })).deletedCount, 1),
  'bulkWrite, ordered': async () => {
    const result = await c.bulkWrite([
      { insertOne: { document: { _id: 20 } } },
      { updateOne: { filter: { _id: 20 }, update: { $set: { n: 20 } } } },
      { replaceOne: { filter: { _id: 21 }, replacement: { n: 21 }, upsert: true } },
      { deleteOne: { filter: { _id: 20 } } },
    ]);
    assert.deepEqual([result.insertedCount, result.modifiedCount, result.upsertedCount, result.deletedCount], [1, 1, 1, 1]);
  },
  'bulkWrite, unordered with an error': () =>
    assert.rejects(
      c.bulkWrite([{ insertOne: { document: { _id: 1 } } }, { insertOne: { document: { _id: 22 } } }], { ordered: false }),
      (error) => error.result.insertedCount === 1,
    ),
  countDocuments: async () => assert.equal(await c.countDocuments({ _id: { $lte: 3 } }), 3),
  estimatedDocumentCount: async () => assert.equal(await c.estimatedDocumentCount(), 5),
  distinct: async () => assert.deepEqual(await c.distinct('_id', { _id: { $lt: 3 } }), [1, 2]),
  'aggregate with $match and $group': async () => {
    const [row] = await c.aggregate([{ $match: { _id: { $lte: 3 } } }, { $group: { _id: null, sum: { $sum: '$n' } } }]).toArray();
    assert.equal(row.sum, 16);
  },
  'an update by a pipeline': async () =>
    assert.equal((await c.updateOne({ _id: 3 }, [{ $set: { m: { $add: ['$n', 1] } } }])).modifiedCount, 1),
  'a view': async () => {
    const view = await db.createCollection('view', { viewOn: 'c', pipeline: [{ $match: { m: 4 } }] });
    assert.deepEqual(await view.distinct('_id'), [3]);
    await assert.rejects(view.insertOne({ m: 4 }), refusedWith(166));
    await assert.rejects(view.insertMany([{}, {}], { ordered: false }), (error) => error.writeErrors.length === 2);
    assert.equal(await view.drop(), true);
  },
  '$lookup, $out and $merge': async () => {
    const join = { $lookup: { from: 'c', localField: 'n', foreignField: 'n', as: 'same' } };
    await c.aggregate([join, { $out: 'joined' }]).toArray();
    await c.aggregate([join, { $merge: 'joined' }]).toArray();
    assert.equal((await db.collection('joined').findOne({ _id: 3 })).same[0]._id, 3);
    await db.collection('joined').drop();
  },
  'a change stream, resumed': async () => {
    const first = c.watch([{ $match: { operationType: 'update' } }], { fullDocument: 'updateLookup' });
    await first.tryNext();
    await c.updateOne({ _id: 3 }, { $set: { watched: 1 } });
    assert.equal((await first.next()).fullDocument.watched, 1);
    const resumeAfter = first.resumeToken;
    await first.close();
    await c.updateOne({ _id: 3 }, { $set: { watched: 2 } });
    const second = c.watch([], { resumeAfter });
    assert.equal((await second.next()).updateDescription.updatedFields.watched, 2);
    await second.close();
  },
  'min and max': async () => {
    const between = c.find().hint({ _id: 1 }).min({ _id: 2 }).max({ _id: 3 });
    assert.deepEqual((await between.toArray()).map((one) => one._id), [2]);
  },
  createIndex: async () => assert.equal(await c.createIndex({ n: 1 }), 'n_1'),
  'a unique index': async () => {
    await c.createIndex({ u: 1 }, { unique: true, sparse: true });
    await c.insertOne({ _id: 30, u: 1 });
    await assert.rejects(c.insertOne({ _id: 31, u: 1 }), refusedWith(11000));
  },
  'indexes and indexExists': async () => {
    assert.deepEqual((await c.indexes()).map((index) => index.name), ['_id_', 'n_1', 'u_1']);
    assert.equal(await c.indexExists('n_1'), true);
  },
  'explain and hint': async () => assert.ok(JSON.stringify(await c.find({ n: 11 }).hint('n_1').explain()).includes('IXSCAN')),
  dropIndex: async () => assert.ok(await c.dropIndex('n_1')),
  'listCollections and listDatabases': async () => {
    assert.deepEqual((await db.listCollections().toArray()).map((one) => one.name), ['c']);
    assert.ok((await db.admin().listDatabases()).databases.some((one) => one.name === 'things'));
  },
  'createCollection, rename and drop': async () => {
    await db.createCollection('made');
    await (await db.renameCollection('made', 'renamed')).insertOne({});
    assert.equal(await db.collection('renamed').drop(), true);
  },
  'a capped collection, tailed': async () => {
    const capped = await db.createCollection('capped', { capped: true, size: 4096 });
    await capped.insertOne({ _id: 1 });
    const cursor = capped.find({}, { tailable: true, awaitData: true, maxAwaitTimeMS: 500 });
    assert.equal((await cursor.next())._id, 1);
    setTimeout(() => capped.insertOne({ _id: 2 }), 100);
    assert.equal((await cursor.next())._id, 2);
    await cursor.close();
  },
  'a validator': async () => {
    const checked = await db.createCollection('checked', { validator: { $jsonSchema: { required: ['n'] } } });
    await assert.rejects(checked.insertOne({ m: 1 }), refusedWith(121));
    await checked.insertOne({ n: 1 });
  },
  'a session': () => session(async (s) => {
    await c.insertOne({ _id: 40 }, { session: s });
    assert.equal((await c.findOne({ _id: 40 }, { session: s }))._id, 40);
  }),
  'a causal session reads its writes on a secondary': () => session(async (s) => {
    await c.insertOne({ _id: 41 }, { session: s });
    const there = await c.findOne({ _id: 41 }, { session: s, readPreference: 'secondary', readConcern: { level: 'majority' } });
    assert.equal(there._id, 41);
  }, { causalConsistency: true }),
  'a snapshot session': () => session(async (s) => {
    const before = await c.countDocuments({}, { session: s });
    await c.insertOne({ _id: 42 });
    assert.equal(await c.countDocuments({}, { session: s }), before);
  }, { snapshot: true }),
  'a transaction, committed': () => session(async (s) => {
    s.startTransaction({ readConcern: { level: 'snapshot' } });
    await c.insertOne({ _id: 50 }, { session: s });
    await db.collection('d').insertOne({ _id: 50 }, { session: s });
    assert.equal(await c.findOne({ _id: 50 }), null);
    await s.commitTransaction();
    assert.equal((await db.collection('d').findOne({ _id: 50 }))._id, 50);
  }),
  'a transaction, aborted': () => session(async (s) => {
    s.startTransaction();
    await c.insertOne({ _id: 51 }, { session: s });
    await s.abortTransaction();
    assert.equal(await c.findOne({ _id: 51 }), null);
  }),
  'transactions in conflict': () => session((one) => session(async (other) => {
    one.startTransaction();
    other.startTransaction();
    await c.updateOne({ _id: 1 }, { $set: { by: 1 } }, { session: one });
    const lost = c.updateOne({ _id: 1 }, { $set: { by: 2 } }, { session: other });
    await assert.rejects(lost, (error) => error.code === 112 && error.hasErrorLabel('TransientTransactionError'));
    await one.commitTransaction();
  })),
  withTransaction: () => session(async (s) => {
    await s.withTransaction(() => c.insertOne({ _id: 52 }, { session: s }));
    assert.equal((await c.findOne({ _id: 52 }))._id, 52);
  }),
  'GridFS up and down': async () => {
    const bucket = new GridFSBucket(db, { chunkSizeBytes: 1000 });
    const bytes = Buffer.alloc(5000, 'x');
    const upload = Readable.from([bytes]).pipe(bucket.openUploadStream('file'));
    await new Promise((resolve, reject) => upload.on('finish', resolve).on('error', reject));
    const chunks = await bucket.openDownloadStreamByName('file').toArray();
    assert.equal(Buffer.concat(chunks).equals(bytes), true);
    await bucket.delete(upload.id);
  },
  'values of all kinds': async () => {
    const values = { _id: 60, long: Long.fromString('9007199254740993'), date: new Date(5), regex: /a/i, bytes: Buffer.from('b'), none: null };
    await c.insertOne({ ...values, time: new Timestamp({ t: 1, i: 2 }) });
    const found = await c.findOne({ _id: 60 }, { promoteLongs: false });
    assert.equal(found.long.toString(), '9007199254740993');
    assert.equal(found.date.getTime(), 5);
    assert.equal(found.regex.flags, 'i');
  },
  'read preferences and concerns': async () => {
    const there = c.find({ _id: 1 }, { readPreference: 'secondaryPreferred', readConcern: { level: 'local' } });
    assert.equal((await there.toArray()).length, 1);
    assert.equal((await c.findOne({ _id: 1 }, { readConcern: { level: 'linearizable' } }))._id, 1);
  },
  maxTimeMS: async () => assert.equal((await c.find().maxTimeMS(5000).toArray()).length > 0, true),
  'collation simple and comment': async () =>
    assert.equal((await c.find({ _id: 1 }, { collation: { locale: 'simple' }, comment: 'why' }).toArray()).length, 1),
  'the Stable API': async () => {
    const strict = new MongoClient(process.argv[2], { serverApi: { version: '1', strict: true, deprecationErrors: true } });
    try {
      assert.equal(await strict.db('things').collection('c').countDocuments({ _id: 1 }), 1);
      await assert.rejects(strict.db('things').collection('c').distinct('_id'), refusedWith(323));
    } finally {
      await strict.close();
    }
  },
};

const failed = [];
for (const [name, thing] of Object.entries(things)) {
  try {
    await thing();
  } catch (error) {
    failed.push([name, `${error.code ?? ''} ${error.message}`.trim().slice(0, 300)]);
  }
}
await client.close();
console.log(JSON.stringify({ ok: Object.keys(things).length - failed.length, failed }));
