//! What a server reports while it is tested.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for a line.
const PATIENCE: Duration = Duration::from_secs(30);

/// The lines that a server has reported so far. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Reports(Arc<Mutex<Vec<String>>>);

impl Reports {
    /// What the server is to call with each line.
    pub fn sink(&self) -> Arc<dyn Fn(&str) + Send + Sync> {
        let reports = self.clone();
        Arc::new(move |line| {
            println!("report: {line}");
            reports.lock().push(line.to_owned());
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All lines.
    pub fn lines(&self) -> Vec<String> {
        self.lock().clone()
    }

    /// How many lines contain `text`.
    pub fn count(&self, text: &str) -> usize {
        self.lock().iter().filter(|line| line.contains(text)).count()
    }

    /// Waits until a line contains `text`: threads may report late.
    ///
    /// # Panics
    /// If none does within 30 seconds.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while self.count(text) == 0 {
            assert!(Instant::now() < until, "no report of '{text}': {:?}", self.lines());
            thread::sleep(Duration::from_millis(5));
        }
    }
}
