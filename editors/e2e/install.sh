#!/bin/sh
# Fill a folder with what the tests in a real VS Code need: its own web server (out of the npm
# package code-server, without that wrapper), playwright-core, and our extension as .vsix.
#
#   sh editors/e2e/install.sh FOLDER
#   RLM_TEST_EDITORS=FOLDER uv run pytest tests/e2e/test_vscode.py
#
# Needs Node 20 with npm, a C++ compiler (one module of VS Code is compiled) and Chromium. What is
# there already is kept: 300 MB, a minute the first time.
set -eu
tools=$(mkdir -p "$1" && cd "$1" && pwd)
extension=$(cd "$(dirname "$0")/../vscode" && pwd)
quiet="--no-audit --no-fund --loglevel=error"
# Headers that came with Node need not be downloaded.
node=$(dirname "$(dirname "$(command -v node)")")
if [ -e "$node/include/node/node.h" ]; then export npm_config_nodedir="$node"; fi

if [ ! -e "$tools/vscode/.complete" ]; then
  rm -rf "$tools/vscode" "$tools/unpacked"
  mkdir "$tools/unpacked"
  cd "$tools/unpacked"
  npm pack --silent code-server@4.100.3 >/dev/null
  tar xzf code-server-4.100.3.tgz package/lib/vscode
  mv package/lib/vscode "$tools/vscode"
  rm -r "$tools/unpacked"
  cd "$tools/vscode"
  npm install $quiet --ignore-scripts --omit=dev
  npm rebuild $quiet @vscode/spdlog native-watchdog
  ln -sfn node_modules node_modules.asar
  (cd extensions && npm install $quiet --ignore-scripts --omit=dev)
  touch .complete
fi
cd "$tools"
[ -e package.json ] || echo '{ "private": true }' >package.json
[ -d node_modules/playwright-core ] || npm install $quiet --no-package-lock playwright-core@1.65.1

cd "$extension"
[ -d node_modules ] || npm install $quiet --no-package-lock --ignore-scripts
npm run --silent package >/dev/null
cp dist/rlm-host.vsix "$tools/"
