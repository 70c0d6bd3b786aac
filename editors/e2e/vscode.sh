#!/bin/sh
# Types, bundle, unit tests (one of them against a real host) and .vsix of the VS Code extension.
# Needs Node 20, npm and the project's environment; prints 'N passed, N failed' last.
set -u
cd "$(dirname "$0")/../vscode" || exit 1
passed=0
failed=0

check() {
  what=$1
  shift
  if "$@" >"$log" 2>&1; then
    passed=$((passed + 1))
    echo "ok   $what"
  else
    failed=$((failed + 1))
    echo "FAIL $what"
    cat "$log"
  fi
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
python=$(cd ../.. && uv run python -c 'import sys; print(sys.executable)') || exit 1
RLM_COMMAND="[\"$python\", \"-m\", \"rlm_host\"]"
export RLM_COMMAND
[ -d node_modules ] || check "install" npm install --no-package-lock --no-audit --no-fund --ignore-scripts
check "types are fresh" "$python" ../protocol/generate.py --check
check "typecheck" npm run typecheck
check "unit tests" npm test
check "vsix" npm run package
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
