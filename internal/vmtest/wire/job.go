package wire

import "time"

// JobPath is where the guest finds its Job, as JSON.
const JobPath = "/job.json"

// ModuleDir holds the modules of a Job's tests, one directory for each
// package, laid out as in the module so that relative paths between packages
// stay true.
const ModuleDir = "/module"

// A Job is everything that the guest is asked to do.
type Job struct {
	// Modules are loaded before the first task, in order. One that cannot be
	// loaded is reported and does not stop the job.
	Modules []string
	// Env are variables beside those that the guest sets itself.
	Env []string
	// Tasks run one after the other, each whatever became of those before it.
	Tasks []Task
	// Limit is the time that all of it may take. Shortly before it is over the
	// running task is sent SIGQUIT, upon which a Go program prints its stacks.
	// 0 means no limit.
	Limit time.Duration
}

// A Task is one program to run in the guest.
type Task struct {
	Name string   // what the task is called in reports, an import path mostly
	Path string   // the program
	Args []string // its arguments, without the program's own name
	Dir  string   // its working directory
	// Timeout adds -test.timeout with a little less than the time that is left
	// of the limit, so that a hanging test is named.
	Timeout bool
	// Merge sends what the task writes to its standard error to the same
	// stream as its standard output, in the order written.
	Merge bool
}

// Result is how one Task ended.
type Result struct {
	Task    int           // index into Job.Tasks
	Code    int           // exit status, -1 if it was killed or could not start
	Reason  string        // what happened if Code is -1, "" otherwise
	Elapsed time.Duration // by the guest's clock
}
