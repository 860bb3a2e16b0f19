/* Sphinx's scores of results, but that guides and tutorials come before the history of changes, and a function under
   gradmgr's own name before the same under HIPS autograd's. */
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => {
    if (docname.includes("gradmgr.compat.")) return score - 8;
    if (/^(changelog|contributing|benchmarks|gallery\/)/.test(docname)) return score - 4;
    if (docname.startsWith("reference/")) return score;
    return score + 2;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
