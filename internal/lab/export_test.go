package lab

// CheckLeaksWithin is CheckLeaks with a patience of its own, to test that it finds what is left.
var CheckLeaksWithin = checkLeaks
