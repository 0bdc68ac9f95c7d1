// Loaded into servers in Node before their own code: what they draw at random is the same in each process.
// The counterpart for Python is `genenv.tools.worlds.seeding`.
'use strict'
const crypto = require('crypto')

const isPackageManager = /[\\/](npm|npx|yarn|pnpm|corepack)[\\/]/.test(process.argv[1] || '')
try {
  if (!isPackageManager) takeOver()
} catch {} // an old version of Node lacks something, and its numbers stay as they are

function takeOver() {
  const createHash = crypto.createHash
  let drawn = 0
  const bytes = (size) => {
    const parts = []
    for (let left = size; left > 0; left -= 32) parts.push(createHash('sha256').update(`${drawn++}`).digest())
    return Buffer.concat(parts).subarray(0, size)
  }
  const number = () => bytes(6).readUIntBE(0, 6)
  const fill = (target, offset = 0, size = undefined) => {
    const view = ArrayBuffer.isView(target)
      ? new Uint8Array(target.buffer, target.byteOffset, target.byteLength)
      : new Uint8Array(target)
    const unit = target.BYTES_PER_ELEMENT || 1
    const end = size === undefined ? view.length : (offset + size) * unit
    view.set(bytes(end - offset * unit), offset * unit)
    return target
  }
  const uuid = () => {
    const made = bytes(16)
    made[6] = (made[6] & 0x0f) | 0x40
    made[8] = (made[8] & 0x3f) | 0x80
    const hex = made.toString('hex')
    return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-')
  }
  const answered = (value, callback) => {
    if (typeof callback !== 'function') return value
    process.nextTick(callback, null, value)
  }

  const set = (of, name, value) => {
    try {
      Object.defineProperty(of, name, { value, configurable: true, writable: true })
    } catch {} // another version of Node does not let it be replaced
  }

  Math.random = () => number() / 2 ** 48
  set(crypto, 'randomBytes', (size, callback) => answered(bytes(size), callback))
  set(crypto, 'pseudoRandomBytes', crypto.randomBytes)
  set(crypto, 'randomFillSync', fill)
  set(crypto, 'randomFill', (target, ...rest) => answered(fill(target, ...rest.slice(0, -1)), rest[rest.length - 1]))
  set(crypto, 'randomInt', (low, high, callback) => {
    if (high === undefined || typeof high === 'function') [low, high, callback] = [0, low, high]
    return answered(low + (number() % (high - low)), callback)
  })
  set(crypto, 'randomUUID', uuid)
  const web = Object.getPrototypeOf(crypto.webcrypto)
  set(web, 'getRandomValues', fill)
  set(web, 'randomUUID', uuid)
  set(crypto, 'getRandomValues', fill)
  require('module').syncBuiltinESMExports()
}
