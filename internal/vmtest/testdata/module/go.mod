module example.test/guests

go 1.25.0
