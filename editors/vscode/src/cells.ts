/** Where cells begin: only as far as commands at the cursor need it, the host knows the rest. */

const MARKER = /^#\s*(?:%%|<codecell>|In\[[\d ]*\])/;

/** Give the first line, from 0, of the cell that a line lies in. */
export function startOfCell(lines: readonly string[], line: number): number {
  for (let at = Math.min(line, lines.length - 1); at > 0; at--) {
    if (MARKER.test(lines[at])) return at;
  }
  return 0;
}
