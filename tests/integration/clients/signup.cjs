'use strict';
// Signs a user of Parse up against the set in MONGODB_URI, and proves that names and addresses ignore case.
const assert = require('node:assert');
const http = require('node:http');
const { default: ParseServer } = require('parse-server');

async function main() {
  const app = new ParseServer({
    databaseURI: process.env.MONGODB_URI,
    appId: 'shop',
    masterKey: 'master',
    serverURL: 'http://127.0.0.1:1/parse',
    directAccess: true,
    logsFolder: null,
    silent: true,
  });
  await app.start();
  const server = http.createServer(app.app);
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const address = `http://127.0.0.1:${server.address().port}`;
  const ask = async (method, path, body) => {
    const headers = { 'X-Parse-Application-Id': 'shop', 'Content-Type': 'application/json' };
    const answer = await fetch(address + path, { method, headers, body: body && JSON.stringify(body) });
    return { status: answer.status, ...(await answer.json()) };
  };
  const made = await ask('POST', '/users', { username: 'Ann', password: 'secret', email: 'ann@example.org' });
  assert.strictEqual(made.status, 201, JSON.stringify(made));
  const other = await ask('POST', '/users', { username: 'ANN', password: 'secret' });
  assert.strictEqual(other.code, 202, JSON.stringify(other)); // the name is taken
  const mail = await ask('POST', '/users', { username: 'bob', password: 'secret', email: 'Ann@Example.org' });
  assert.strictEqual(mail.code, 203, JSON.stringify(mail));
  const login = await ask('GET', '/login?username=Ann&password=secret');
  assert.strictEqual(login.status, 200, JSON.stringify(login));
  assert.strictEqual(login.objectId, made.objectId);
  console.log('signed up', made.objectId);
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
