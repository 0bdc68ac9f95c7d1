// A to-do list as an MCP server in Node without any package: ids are random, and the file has the time in it.
import { randomUUID } from 'node:crypto'
import { createInterface } from 'node:readline'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
const FILE = process.argv[2] + '/tasks.json'
const read = () => existsSync(FILE) ? JSON.parse(readFileSync(FILE, 'utf8')) : {}
const write = (tasks) => writeFileSync(FILE, JSON.stringify(tasks))
const text = { type: 'string' }
const tools = [
  { name: 'add_task', description: 'Add a task to the list.', inputSchema: { type: 'object', properties: { title: text }, required: ['title'] } },
  { name: 'list_tasks', description: 'List all tasks.', inputSchema: { type: 'object', properties: {} } },
  { name: 'complete_task', description: 'Mark a task as done.', inputSchema: { type: 'object', properties: { task_id: text }, required: ['task_id'] } },
]
function call(name, args) {
  const tasks = read()
  if (name === 'list_tasks') return Object.values(tasks)
  if (name === 'add_task') {
    const id = randomUUID().slice(0, 8)
    tasks[id] = { id, title: args.title, done: false, created: new Date().toISOString() }
    write(tasks)
    return tasks[id]
  }
  if (!tasks[args.task_id]) throw new Error('no such task')
  tasks[args.task_id].done = true
  write(tasks)
  return tasks[args.task_id]
}
createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line)
  if (id === undefined) return
  let result = {}
  if (method === 'initialize') result = { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'todo', version: '1' } }
  if (method === 'tools/list') result = { tools }
  if (method === 'tools/call') {
    try { result = { content: [{ type: 'text', text: JSON.stringify(call(params.name, params.arguments || {})) }] } }
    catch (error) { result = { isError: true, content: [{ type: 'text', text: error.message }] } }
  }
  console.log(JSON.stringify({ jsonrpc: '2.0', id, result }))
})
