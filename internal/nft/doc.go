// Package nft programs one nftables table of each family whose content follows from services: what backends share that
// need such a table, the whole of the work or beside something else.
//
// A backend says with a [Ruleset] what is in the table; this package makes the kernel hold it, in one transaction for
// both families whatever changes, and tells whether it still does:
//
//		Ruleset.Frame, Render ── plan ── batch ══ kernel
//		        │                  │                 │
//		   policy, route        record           witness ── Check
//
//	  - wire, expression, rules, sets, element: how nf_tables is spoken to, in nft's own words. What is written survives
//	    being listed by nft and loaded again.
//	  - policy: the chains that decide who may come in, who is masqueraded and what is refused. They are the same for all.
//	  - render, slots, route: a service's elements, and how connections are spread over endpoints in numbered slots.
//	  - record, plan, own, extra: what the kernel holds, and the way from there to what shall be, piece by piece.
//	  - apply, sync: all of it, from what is recorded or from whatever the kernel holds.
//	  - batch, attempt, commit: one transaction; who is to blame where the kernel refuses it.
//	  - check, read, elements: what the kernel holds.
//
// It knows nothing of other backends, and nothing of the process around it.
package nft
