// Logs in with the Node driver: node login.mjs URI; prints what a user may do and what not, as one JSON line.
import { MongoClient } from "mongodb";

const client = new MongoClient(process.argv[2], { serverSelectionTimeoutMS: 10000 });
const found = {};
try {
  await client.db("shop").collection("orders").insertOne({ _id: "node" }, { writeConcern: { w: "majority" } });
  found.read = await client.db("shop").collection("orders").findOne({ _id: "node" });
  found.refused = await client.db("other").collection("c").findOne({}).catch((error) => error.code);
} catch (error) {
  found.failed = error.code ?? error.message;
} finally {
  await client.close();
}
console.log(JSON.stringify(found));
