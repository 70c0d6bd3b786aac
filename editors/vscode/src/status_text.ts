/** What the status item says. */

export type HostState = "starting" | "running" | "stopped";

/** Give text and tooltip for the host's state and the number of cells that run. */
export function statusText(state: HostState, cells: number): { text: string; tooltip: string } {
  switch (state) {
    case "starting":
      return { text: "$(sync~spin) rlm", tooltip: "rlm-host is starting" };
    case "stopped":
      return { text: "$(error) rlm", tooltip: "rlm-host does not run. Click to see its log." };
    case "running":
      return cells > 0
        ? { text: `$(sync~spin) rlm: ${cells}`, tooltip: `${cells} commands run. Click for the log.` }
        : { text: "$(circuit-board) rlm", tooltip: "rlm-host is ready. Click for its log." };
  }
}
