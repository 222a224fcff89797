// Makes the AWS provider load its resources when they are used. Its index.js requires all 2,200 of them at once,
// which takes 4 s and 480 MB.
const fs = require("node:fs");
const Module = require("node:module");

const INDEX = /[\\/]provider-aws[\\/]lib[\\/]index\.js$/;
// CDK Terrain's has a helper of the compiler around each.
const RESOURCE = /^exports\.(\w+) = (require\(".+?"\)|__importStar\(require\(".+?"\)\));$/gm;
const WHEN_USED = 'Object.defineProperty(exports, "$1", { enumerable: true, configurable: true, get: () => $2 });';

const load = Module._extensions[".js"];
Module._extensions[".js"] = (module, filename) =>
  INDEX.test(filename)
    ? module._compile(fs.readFileSync(filename, "utf8").replace(RESOURCE, WHEN_USED), filename)
    : load(module, filename);
