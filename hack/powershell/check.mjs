// Parses PowerShell scripts with tree-sitter's grammar and reports where one does not parse. It knows only the syntax, not the parameters of commands.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { Language, Parser } from "web-tree-sitter";

await Parser.init();
const parser = new Parser();
parser.setLanguage(await Language.load(createRequire(import.meta.url).resolve("tree-sitter-powershell/tree-sitter-powershell.wasm")));

let faults = 0;
function look(node, path) {
  if (node.isError || node.isMissing) {
    console.log(`${path}:${node.startPosition.row + 1}:${node.startPosition.column + 1}: cannot parse: ${node.text.split("\n")[0].slice(0, 60) || node.type + " is missing"}`);
    faults++;
    return;
  }
  if (node.hasError) node.children.forEach((child) => look(child, path));
}
for (const path of process.argv.slice(2)) look(parser.parse(readFileSync(path, "utf8")).rootNode, path);
process.exit(faults > 0 ? 1 : 0);
