// Our extension in a real VS Code (its own web server, in a headless Chromium), with a real host.
//
//   node vscode.mjs TOOLS WORK '["python", "-m", "rlm_host"]'
//
// TOOLS is a folder that install.sh has filled, WORK an empty folder for everything that is written.
// Prints a line for each check, then 'N passed, N failed'; leaves screenshots in WORK/shots.
import { spawn, spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import fs from "node:fs";
import path from "node:path";

const [tools, work, hostCommand] = process.argv.slice(2);
const { chromium } = createRequire(path.join(tools, "package.json"))("playwright-core");
const WAIT_MS = 60_000;
const TEXT = `# %% first
numbers = [3, 1, 2]
sum(numbers)
# %% second
1 / 0
# %% third
import os, time
while not os.path.exists("go"): time.sleep(0.01)
# %% fourth
agent = await rlm("hello", name="helper", model="scripted/echo", unguarded=True)
# %%
numbers
`;

const folder = path.join(work, "project");
const shots = path.join(work, "shots");
const home = path.join(work, "rlm");
for (const made of [folder, shots, path.join(work, "run"), path.join(work, "user/User")]) {
  fs.mkdirSync(made, { recursive: true });
}
fs.chmodSync(path.join(work, "run"), 0o700);
fs.writeFileSync(path.join(folder, "demo.py"), TEXT);
fs.writeFileSync(
  path.join(work, "user/User/settings.json"),
  JSON.stringify({
    "rlm.command": JSON.parse(hostCommand),
    "security.workspace.trust.enabled": false,
    "workbench.startupEditor": "none",
    "telemetry.telemetryLevel": "off",
    "extensions.autoCheckUpdates": false,
    "extensions.autoUpdate": false,
    "remote.autoForwardPorts": false,
    "chat.disableAIFeatures": true,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
  }),
);

const environment = { ...process.env, HOME: work, RLM_HOME: home, XDG_RUNTIME_DIR: path.join(work, "run") };
const serverArgs = [
  path.join(tools, "vscode/out/server-main.js"),
  "--host", "127.0.0.1", "--port", "0", "--without-connection-token", "--accept-server-license-terms",
  "--user-data-dir", path.join(work, "user"), "--server-data-dir", path.join(work, "server"),
  "--extensions-dir", path.join(work, "extensions"), "--telemetry-level", "off",
];

let passed = 0;
let failed = 0;
let page;

/** Do one thing that a person does, and say whether it came out. */
async function check(what, act) {
  try {
    await act();
    passed++;
    console.log(`ok   ${what}`);
  } catch (why) {
    failed++;
    console.log(`FAIL ${what}\n     ${String(why?.stack ?? why).slice(0, 1000)}`);
  }
  await page?.screenshot({ path: path.join(shots, `${String(passed + failed).padStart(2, "0")}.png`) });
}

function startServer() {
  const server = spawn(process.execPath, serverArgs, { env: environment, stdio: ["ignore", "pipe", "pipe"] });
  const port = new Promise((found, lost) => {
    let said = "";
    for (const stream of [server.stdout, server.stderr]) {
      stream.on("data", (data) => {
        said += data;
        const match = /listening on (\d+)/.exec(said);
        if (match) found(Number(match[1]));
      });
    }
    server.on("exit", (code) => lost(new Error(`the server ended with ${code}: ${said}`)));
  });
  return { server, port };
}

/** Wait until the page's text, no-break spaces made plain, fits. */
const seen = (selector, pattern) =>
  page.waitForFunction(
    ([selector, source]) => {
      const texts = [...document.querySelectorAll(selector)].map((e) => e.textContent);
      return new RegExp(source).test(texts.join("\n").replace(/\u00a0/g, " "));
    },
    [selector, pattern.source],
    { timeout: WAIT_MS },
  );

async function until(what, holds) {
  for (const end = Date.now() + WAIT_MS; !holds(); ) {
    if (Date.now() > end) throw new Error(`in vain: ${what}`);
    await new Promise((again) => setTimeout(again, 50));
  }
}

async function palette(command) {
  await page.keyboard.press("F1");
  await page.waitForSelector(".quick-input-widget input", { timeout: WAIT_MS });
  await page.keyboard.type(command);
  await page.locator(".quick-input-widget .monaco-list-row").filter({ hasText: command }).first().click({ timeout: WAIT_MS });
}

const lens = (number) => page.locator('.codelens-decoration a:has-text("Run cell")').nth(number);
const status = '.statusbar-item[id*="rlm.status"]';

/** Give the processes of this home whose command line names a module, as ps would show them. */
function processes(module) {
  const read = (pid, file) => fs.readFileSync(`/proc/${pid}/${file}`, "utf8").split("\0");
  return fs.readdirSync("/proc").filter((pid) => {
    try {
      return read(pid, "cmdline").includes(module) && read(pid, "environ").includes(`RLM_HOME=${home}`);
    } catch {
      return false; // no process, or one that has just ended
    }
  }).map(Number);
}
const hosts = () => processes("rlm_host");

async function drive(port) {
  await page.goto(`http://127.0.0.1:${port}/?folder=${folder}`, { waitUntil: "domcontentloaded" });
  await page.locator('.explorer-folders-view .monaco-list-row:has-text("demo.py")').first().dblclick({ timeout: WAIT_MS });
  await page.waitForSelector(".editor-instance .view-lines", { timeout: WAIT_MS });

  await check("the first Python file attaches a host", () => seen(status, /^\s*rlm$/));
  await check("every cell has its lenses", async () => {
    await seen(".editor-instance", /Run cell.*Run all[^]*Run cell.*Run above/);
    await page.waitForFunction(
      () => [...document.querySelectorAll(".codelens-decoration")].filter((e) => /Run cell/.test(e.textContent)).length === 5,
      null,
      { timeout: WAIT_MS },
    );
  });
  await check("a lens runs its cell, and the result stands behind the code", async () => {
    await lens(0).click();
    await seen(".editor-instance", /sum\(numbers\)\s*=> 6/);
  });
  await check("a cell that raises is marked at its line", async () => {
    await lens(1).click();
    await seen(".editor-instance", /ZeroDivisionError/);
    await page.waitForSelector(".editor-instance .squiggly-error", { timeout: WAIT_MS });
  });
  await check("hover shows what a name holds now", async () => {
    await page.locator('.view-line:has-text("numbers = ")').first().click({ position: { x: 10, y: 8 } });
    await page.keyboard.press("Control+k");
    await page.keyboard.press("Control+i");
    await seen(".monaco-hover", /\[3, 1, 2\]/);
    await page.keyboard.press("Escape");
  });
  await check("completion knows the live object", async () => {
    await page.keyboard.press("Control+End");
    await page.keyboard.press("ArrowLeft");
    await page.keyboard.type(".");
    await seen(".suggest-widget", /append/);
    await page.keyboard.press("Escape");
    await page.keyboard.press("Backspace");
  });
  await check("the status item counts what runs; a command interrupts it", async () => {
    await lens(2).click();
    await seen(status, /rlm: 1/);
    await palette("RLM: Interrupt");
    await seen(".editor-instance", /interrupted/);
    await seen(status, /^\s*rlm$/);
  });
  await check("the tree shows the folder's session, its agent, and what both have used", async () => {
    await page.locator('.activitybar [aria-label^="rlm-host"]').first().click();
    await seen(".monaco-list-row", /project.*idle · scripted\/demo · 0 tokens, \$0\.0000/);
    await lens(3).click();
    await seen(".monaco-list-row", /helper.*completed · scripted\/echo · \d\d+ tokens/);
    await seen(".monaco-list-row", /project.*idle · scripted\/demo · \d\d+ tokens/);
  });
  await check("a host that is killed comes back, with its session and its names", async () => {
    const before = hosts();
    if (before.length !== 1) throw new Error(`${before.length} hosts`);
    process.kill(before[0], "SIGKILL");
    await until("another host runs", () => hosts().length === 1 && hosts()[0] !== before[0]);
    await seen(status, /^\s*rlm$/);
    await seen(".monaco-list-row", /project.*idle/);
    await lens(4).click();
    await seen(".editor-instance", /=> \[3, 1, 2\]/);
    if ((await page.locator('.monaco-list-row:has-text("scripted/demo")').count()) !== 1) throw new Error("another session was made");
  });
}

const { server, port } = startServer();
let browser;
try {
  const number = await port;
  const installed = spawnSync(process.execPath, [...serverArgs, "--install-extension", path.join(tools, "rlm-host.vsix")], { env: environment, encoding: "utf8" });
  if (installed.status !== 0) throw new Error(`the extension cannot be installed: ${installed.stdout}${installed.stderr}`);
  browser = await chromium.launchPersistentContext(path.join(work, "browser"), {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    viewport: { width: 1280, height: 800 },
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    ],
  });
  page = browser.pages()[0] ?? (await browser.newPage());
  await drive(number);
} catch (why) {
  failed++;
  console.log(`FAIL ${why?.stack ?? why}`);
  await page?.screenshot({ path: path.join(shots, "error.png") });
} finally {
  await browser?.close();
  server.removeAllListeners("exit");
  const ended = new Promise((done) => server.on("exit", done));
  server.kill("SIGTERM");
  await ended;
}
page = undefined;
await check("nothing of the host is left when the editor has gone", () => until("no process", () => hosts().length + processes("rlm.repl").length === 0));
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
