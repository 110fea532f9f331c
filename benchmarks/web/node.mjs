/** Measures the voices of a folder in Node: `node node.mjs FOLDER` prints JSON. */

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

import { measure } from "./measure.mjs";

const [folder] = process.argv.slice(2);
const modules = createRequire(new URL("../../examples/web/package.json", import.meta.url));
const ort = modules("onnxruntime-web");
const load = (name) => readFile(join(folder, name));
const plan = JSON.parse(await load("plan.json"));
console.log(JSON.stringify(await measure(ort, load, plan)));
