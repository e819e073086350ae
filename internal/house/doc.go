// Package house holds the rules of this repository that a compiler does not know, as tests: who may import whom, what
// must be documented, what a library never does, and what may stand at the top of the tree.
//
// Each rule is a function from source code to findings, tried on a sample that breaks it, and then run over the tree.
package house
