package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/internal/vmtest/wire"
)

// work does the whole job. It returns an error only if the host could not be
// told what happened.
func work() error {
	started := time.Now()
	job, err := readJob()
	if err != nil {
		return err
	}
	line, err := openPort()
	if err != nil {
		return err
	}
	host, err := wire.NewWriter(line, release())
	if err != nil {
		return err
	}
	setEnv(job.Env)
	prepare(job.Modules, func(format string, args ...any) {
		_ = host.Send(wire.Note, fmt.Appendf(nil, format, args...))
	})
	for i, task := range job.Tasks {
		if err := host.SendJSON(wire.Start, i); err != nil {
			return err
		}
		left := noLimit
		if job.Limit > 0 {
			left = job.Limit - time.Since(started)
		}
		result := run(task, left, host)
		result.Task = i
		if err := host.SendJSON(wire.Exit, result); err != nil {
			return err
		}
	}
	if err := host.Send(wire.Done, nil); err != nil {
		return err
	}
	return drain(line)
}

func readJob() (wire.Job, error) {
	var job wire.Job
	text, err := os.ReadFile(wire.JobPath)
	if err != nil {
		return job, err
	}
	if err := json.Unmarshal(text, &job); err != nil {
		return job, fmt.Errorf("%s: %w", wire.JobPath, err)
	}
	return job, nil
}

func setEnv(extra []string) {
	os.Clearenv()
	for k, v := range map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/root", "USER": "root", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "HEADGATE_VM": "1",
	} {
		_ = os.Setenv(k, v)
	}
	for _, kv := range extra {
		if key, value, ok := strings.Cut(kv, "="); ok {
			_ = os.Setenv(key, value)
		}
	}
}

// noLimit stands for all the time in the world.
const noLimit time.Duration = 1 << 62

// margins divide the end of the time that is left: after the first a test
// binary stops itself and names the test that hangs, after the second whatever
// still runs is asked for its stacks. What remains is for sending them.
func margins(left time.Duration) (testTimeout, quit time.Duration) {
	margin := min(20*time.Second, left/5)
	return max(left-margin, time.Second), max(left-margin/2, 2*time.Second)
}

// run runs one task to its end, with everything that it writes sent on.
func run(task wire.Task, left time.Duration, host *wire.Writer) wire.Result {
	testTimeout, quit := margins(left)
	if task.Timeout && left != noLimit {
		task.Args = append([]string{"-test.timeout=" + testTimeout.Round(time.Second).String()}, task.Args...)
	}
	cmd := command(task, host)
	started := time.Now()
	err := cmd.Start()
	if err == nil {
		alarm := time.AfterFunc(quit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGQUIT) })
		err = cmd.Wait()
		alarm.Stop()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind
	}
	result := wire.Result{Code: -1, Elapsed: time.Since(started)}
	if state := cmd.ProcessState; state != nil {
		result.Code = state.ExitCode()
	}
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		_ = host.Send(wire.Note, fmt.Appendf(nil, "%s left processes behind that held its output open", task.Name))
	case result.Code == -1:
		result.Reason = err.Error()
	}
	return result
}

// command makes a task's process, in a group of its own.
func command(task wire.Task, host *wire.Writer) *exec.Cmd {
	cmd := exec.Command(task.Path, task.Args...)
	cmd.Dir = task.Dir
	cmd.Stdout = host.Stream(wire.Stdout)
	cmd.Stderr = cmd.Stdout // the same value: one pipe, so the order stays
	if !task.Merge {
		cmd.Stderr = host.Stream(wire.Stderr)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Processes that the task left behind may hold the pipe open.
	cmd.WaitDelay = 3 * time.Second
	return cmd
}
